//! What the commands of real images do, as far as a fake can tell.

use std::time::Duration;

use crate::fake::program::{Program, duration};

/// What a process does that is started with these words, and what it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) program: Program,
    pub(crate) output: String,
}

impl Script {
    /// Reads a command that is known here: `sleep 5`, `sleep infinity`, `exit 3`, `true`, `false`, `echo text`, `trap '' TERM`, or
    /// `sh -c` with a script of these, with `;`, `&&` or line ends between them, `exec` before them, or an endless `while` around
    /// them. Nothing where there is a command that is not known.
    pub(crate) fn read(words: &[String]) -> Option<Self> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut run = Run::default();
        match words.as_slice() {
            [shell, "-c", script, ..] if is_shell(shell) => run.script(script)?,
            [_, ..] => run.command(&words)?,
            [] => return None,
        }
        Some(run.end())
    }
}

fn is_shell(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("sh" | "bash" | "ash"))
}

/// What became of the commands so far.
#[derive(Debug, Default)]
struct Run {
    after: Duration,
    code: i32,
    /// It goes no further: it has exited, or runs for ever.
    over: Option<Over>,
    on_term: Option<OnTerm>,
    output: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Over {
    Exited,
    Never,
}

#[derive(Debug)]
enum OnTerm {
    Ignores,
    Exits(i32),
}

impl Run {
    fn script(&mut self, script: &str) -> Option<()> {
        for part in split(script) {
            if self.over.is_some() {
                break;
            }
            let words = words(&part)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                [] | ["do" | "done" | ":"] => {}
                ["while", ":" | "true", ..] => self.over = Some(Over::Never),
                words => self.command(words)?,
            }
        }
        Some(())
    }

    fn command(&mut self, words: &[&str]) -> Option<()> {
        let (name, rest) = words.split_first()?;
        match (name.rsplit('/').next()?, rest) {
            ("exec", rest) => {
                self.command(rest)?;
                self.over.get_or_insert(Over::Exited);
            }
            ("sleep", ["infinity" | "inf"]) | ("pause", []) => self.over = Some(Over::Never),
            ("sleep", [time]) => {
                self.code = 0;
                let time = match time.parse::<f64>() {
                    Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
                    Err(_) => duration(time)?,
                };
                self.after = self.after.checked_add(time)?;
            }
            ("exit", []) => self.over = Some(Over::Exited),
            ("exit", [code]) => {
                self.code = code.parse().ok()?;
                self.over = Some(Over::Exited);
            }
            ("true" | "trap" | "touch" | "mkdir", []) | ("touch" | "mkdir", _) => self.code = 0,
            ("false", _) => self.code = 1,
            ("echo", text) => {
                self.code = 0;
                self.output.push_str(&text.join(" "));
                self.output.push('\n');
            }
            ("trap", ["", "TERM"]) => self.on_term = Some(OnTerm::Ignores),
            ("trap", [action, "TERM"]) => self.on_term = Some(OnTerm::Exits(code_of(action)?)),
            _ => return None,
        }
        Some(())
    }

    fn end(self) -> Script {
        let mut program = match self.over {
            Some(Over::Never) => Program::forever(),
            _ => Program::exit(self.code).after(self.after),
        };
        // The first process of a container takes no notice without a trap; a fake is kinder, so that tests are quick.
        program = match self.on_term {
            Some(OnTerm::Ignores) => program.ignore_term(),
            Some(OnTerm::Exits(code)) => program.on_term(code, Duration::from_millis(1)),
            None => program.on_term(143, Duration::from_millis(1)),
        };
        Script {
            program,
            output: self.output,
        }
    }
}

/// The code that a trap exits with.
fn code_of(action: &str) -> Option<i32> {
    let exit = split(action).into_iter().find_map(|part| {
        let rest = part.trim().strip_prefix("exit")?.trim().to_owned();
        Some(if rest.is_empty() { "0".to_owned() } else { rest })
    });
    exit?.parse().ok()
}

/// The commands of a script, split where no quote is open.
fn split(script: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    let mut rest = script.chars().peekable();
    while let Some(c) = rest.next() {
        let ends = quote.is_none() && (c == ';' || c == '\n' || (c == '&' && rest.peek() == Some(&'&')));
        if ends {
            if c == '&' {
                rest.next();
            }
            parts.push(String::new());
            continue;
        }
        match quote {
            Some(open) if open == c => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

/// The words of a command without their quotes. Nothing where it says where its output goes, or asks for more than words.
fn words(command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in command.chars() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None if matches!(c, '>' | '<' | '|' | '&' | '$' | '`' | '(') => return None,
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Script;
    use crate::fake::program::Program;

    fn read(words: &[&str]) -> Option<Program> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Script::read(&words).map(|script| script.program)
    }

    #[test]
    fn known_commands_are_read() {
        let dies = |program: Program| Some(program.on_term(143, Duration::from_millis(1)));
        let secs = Duration::from_secs;
        let table: [(&[&str], Option<Program>); 12] = [
            (&["true"], dies(Program::exit(0))),
            (&["/bin/false"], dies(Program::exit(1))),
            (&["sleep", "5"], dies(Program::exit(0).after(secs(5)))),
            (&["sleep", "1m"], dies(Program::exit(0).after(secs(60)))),
            (&["sleep", "infinity"], dies(Program::forever())),
            (&["/bin/sh", "-c", "exit 3"], dies(Program::exit(3))),
            (&["sh", "-c", "sleep 2; exit 7"], dies(Program::exit(7).after(secs(2)))),
            (
                &["sh", "-c", "echo 'a; b' && sleep 0.5"],
                dies(Program::exit(0).after(Duration::from_millis(500))),
            ),
            (
                &["sh", "-c", "trap 'echo bye; exit 0' TERM; while :; do sleep 1; done"],
                Some(Program::forever()),
            ),
            (
                &["sh", "-c", "trap '' TERM\nsleep infinity"],
                Some(Program::forever().ignore_term()),
            ),
            (&["nginx", "-g", "daemon off;"], None),
            (&["sh", "-c", "test -e /x || exit 1"], None),
        ];
        for (words, program) in table {
            assert_eq!(read(words), program, "{words:?}");
        }
    }

    #[test]
    fn what_is_echoed_is_written() {
        let words = ["sh", "-c", "echo one  'two  2'; echo three"].map(str::to_owned);
        assert_eq!(Script::read(&words).unwrap().output, "one two  2\nthree\n");
    }
}
