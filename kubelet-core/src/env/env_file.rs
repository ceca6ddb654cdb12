//! The syntax of env files.

/// What is wrong with an env file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
#[non_exhaustive]
pub struct EnvFileError {
    /// The line, counted from 1; for a value that spans lines, its first.
    pub line: usize,
    /// What is wrong there.
    pub problem: EnvFileProblem,
}

/// What is wrong with a line of an env file. The content is not quoted: it may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvFileProblem {
    /// A line is no assignment.
    #[error("no '=' in the line")]
    NoAssignment,
    /// Nothing stands before the `=`.
    #[error("no name before '='")]
    NoName,
    /// A blank stands in the name or between it and the `=`.
    #[error("blank before '='")]
    Blank,
    /// The value does not begin with a single quote.
    #[error("value not in single quotes")]
    NotQuoted,
    /// Something that is no comment follows the closing quote.
    #[error("text after the closing quote")]
    TextAfterQuote,
    /// The closing quote is missing.
    #[error("closing quote missing")]
    NotClosed,
}

/// Finds the value of `name` in the text of an env file.
///
/// A file is a list of `NAME='value'`. The value is literal and may span lines; there is no way to put
/// a single quote in it. Blanks before the name, blank lines, lines that begin with `#`, and a comment
/// after the closing quote are allowed. A blank after the `=`, or nothing, makes the value empty.
/// Of several lines with one name the first counts, and nothing after it is looked at.
///
/// Source: kubelet 1.36, `env_util.go`.
///
/// # Errors
/// [`EnvFileError`] for the first line before the name's that breaks these rules.
pub fn env_file_value<'t>(text: &'t str, name: &str) -> Result<Option<&'t str>, EnvFileError> {
    let mut rest = text;
    let mut line = 1;
    while !rest.is_empty() {
        let assignment = Assignment::read(rest).map_err(|problem| EnvFileError { line, problem })?;
        if let Some((found, value)) = assignment.content
            && found == name
        {
            return Ok(Some(value));
        }
        let (read, after) = rest.split_at(assignment.bytes);
        line += read.matches('\n').count();
        rest = after;
    }
    Ok(None)
}

/// What begins at a line.
struct Assignment<'t> {
    /// Name and value; nothing for blank lines and comments.
    content: Option<(&'t str, &'t str)>,
    /// How far it reaches, with the end of its last line.
    bytes: usize,
}

impl<'t> Assignment<'t> {
    fn read(text: &'t str) -> Result<Self, EnvFileProblem> {
        let line = first_line(text);
        let trimmed = line.trim_start();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(Self {
                content: None,
                bytes: line.len(),
            });
        }
        let (name, _) = trimmed.split_once('=').ok_or(EnvFileProblem::NoAssignment)?;
        if name.is_empty() {
            return Err(EnvFileProblem::NoName);
        }
        if name.contains(char::is_whitespace) {
            return Err(EnvFileProblem::Blank);
        }
        let value_at = line.len() - trimmed.len() + name.len() + 1;
        let value = &text[value_at..];
        let Some(quoted) = value.strip_prefix('\'') else {
            return if value.is_empty() || value.starts_with(char::is_whitespace) {
                Ok(Self {
                    content: Some((name, "")),
                    bytes: line.len(),
                })
            } else {
                Err(EnvFileProblem::NotQuoted)
            };
        };
        let (value, after) = quoted.split_once('\'').ok_or(EnvFileProblem::NotClosed)?;
        let tail = first_line(after);
        let comment = tail.trim_start();
        if !comment.is_empty() && !comment.starts_with('#') {
            return Err(EnvFileProblem::TextAfterQuote);
        }
        Ok(Self {
            content: Some((name, value)),
            bytes: text.len() - after.len() + tail.len(),
        })
    }
}

/// The first line with its end.
fn first_line(text: &str) -> &str {
    text.split_inclusive('\n').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::{EnvFileProblem, env_file_value};

    #[test]
    fn values_are_found() {
        let text = "\
# comment with 'quotes' and A='0'

  A='1'
\tB='two words' # why
C='line one
# no comment
line three'#close
D='$(A) \"x\" \\n'
E=
F= 'ignored'
G=''
A='again'
_.-x='odd names pass'
CR='crlf'\r
LAST='end'";
        for (name, expected) in [
            ("A", Some("1")),
            ("B", Some("two words")),
            ("C", Some("line one\n# no comment\nline three")),
            ("D", Some("$(A) \"x\" \\n")),
            ("E", Some("")),
            ("F", Some("")),
            ("G", Some("")),
            ("_.-x", Some("odd names pass")),
            ("CR", Some("crlf")),
            ("LAST", Some("end")),
            ("line three", None),
            ("NONE", None),
            ("", None),
        ] {
            assert_eq!(env_file_value(text, name), Ok(expected), "{name:?}");
        }
        assert_eq!(env_file_value("", "A"), Ok(None));
    }

    #[test]
    fn faults_are_named_with_their_line() {
        for (bad, problem) in [
            ("word", EnvFileProblem::NoAssignment),
            ("='x'", EnvFileProblem::NoName),
            ("  ='x'", EnvFileProblem::NoName),
            ("B ='x'", EnvFileProblem::Blank),
            ("export B='x'", EnvFileProblem::Blank),
            ("B=x", EnvFileProblem::NotQuoted),
            ("B=\"x\"", EnvFileProblem::NotQuoted),
            ("B=#x", EnvFileProblem::NotQuoted),
            ("B='x' y", EnvFileProblem::TextAfterQuote),
            ("B='x''y'", EnvFileProblem::TextAfterQuote),
            ("B='x\ny", EnvFileProblem::NotClosed),
        ] {
            let text = format!("A='1\n2'\n{bad}\n");
            let error = env_file_value(&text, "Z").unwrap_err();
            assert_eq!((error.line, error.problem), (3, problem), "{bad:?}");
            assert_eq!(env_file_value(&text, "A"), Ok(Some("1\n2")), "found before");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(\\PC|[A=' #\n\r\t]){0,64}", name in "[A ]?") {
            let _ = env_file_value(&text, &name);
        }

        #[test]
        fn any_value_without_a_quote_is_read_back(before in "[^']*", value in "[^']*") {
            let text = format!("X='{before}'\nA='{value}' # end\n");
            prop_assert_eq!(env_file_value(&text, "A"), Ok(Some(value.as_str())));
            prop_assert!(env_file_value(&text, "B") == Ok(None));
        }
    }
}
