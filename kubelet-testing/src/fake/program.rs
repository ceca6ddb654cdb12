//! What a fake container does, and the words that script it from a pod manifest.

use std::time::Duration;

use kubelet_core::PodUid;

/// What a fake container does once it is started.
///
/// The default runs for ever and exits with code 0 one millisecond after it is asked to stop.
///
/// # In a manifest
/// A container's `args` script it, one word each; other arguments are ignored, so that any manifest runs, but a word
/// with a malformed value refuses the container:
///
/// | word | meaning |
/// |---|---|
/// | `exit=3` | ends with that code (at once, or `after`) |
/// | `after=5s` | ends after that time, with code 0 unless `exit` says otherwise |
/// | `crash` | ends with code 1 after 100 ms, in every attempt |
/// | `steady-from=2` | from that attempt on it runs for ever instead |
/// | `forever` | runs for ever |
/// | `term=7` | the code after it was asked to stop |
/// | `term-after=2s` | how long it takes to stop when asked |
/// | `ignore-term` | does not stop when asked, only when killed |
/// | `refuse-start=text` | cannot be started, for that reason |
///
/// Times are whole numbers with a unit: `250ms`, `5s`, `2m`, `1h`, and sums such as `1m30s`.
///
/// An image scripts it too, where the arguments and [`FakeRuntime::set_program`](crate::FakeRuntime::set_program) say
/// nothing: `fake/exit:3`, `fake/exit:3-5s` (after five seconds), `fake/crash`, `fake/ignore-term`, `fake/forever`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Program {
    /// When it ends by itself, and with which code; absent: never.
    pub end: Option<(Duration, i32)>,
    /// When it ends once it is asked to stop, and with which code; absent: it takes no notice.
    pub on_term: Option<(Duration, i32)>,
    /// From this attempt on it does not end by itself.
    pub steady_from: Option<u32>,
    /// Why it cannot be started.
    pub start_error: Option<String>,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            end: None,
            on_term: Some((Duration::from_millis(1), 0)),
            steady_from: None,
            start_error: None,
        }
    }
}

impl Program {
    /// Runs for ever; exits with code 0 one millisecond after it is asked to stop.
    #[must_use]
    pub fn forever() -> Self {
        Self::default()
    }

    /// Ends with `code` as soon as it is started.
    #[must_use]
    pub fn exit(code: i32) -> Self {
        Self {
            end: Some((Duration::ZERO, code)),
            ..Self::default()
        }
    }

    /// Ends with code 1 after 100 ms, each time.
    #[must_use]
    pub fn crash_loop() -> Self {
        Self::exit(1).after(Duration::from_millis(100))
    }

    /// Cannot be started, for that reason.
    pub fn refuses_to_start(reason: impl Into<String>) -> Self {
        Self {
            start_error: Some(reason.into()),
            ..Self::default()
        }
    }

    /// Ends by itself after `after`, with code 0 unless it had another.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.end = Some((after, self.end.map_or(0, |(_, code)| code)));
        self
    }

    /// Ends with `code` that long after it is asked to stop.
    #[must_use]
    pub fn on_term(mut self, code: i32, after: Duration) -> Self {
        self.on_term = Some((after, code));
        self
    }

    /// Takes no notice when asked to stop.
    #[must_use]
    pub fn ignore_term(mut self) -> Self {
        self.on_term = None;
        self
    }

    /// Runs for ever from that attempt on.
    #[must_use]
    pub fn steady_from(mut self, attempt: u32) -> Self {
        self.steady_from = Some(attempt);
        self
    }

    /// Reads the words described above. Nothing if there is none among them.
    ///
    /// # Errors
    /// A text that names the word whose value is malformed.
    pub fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Option<Self>, String> {
        let mut program = Self::default();
        let mut found = false;
        for word in words {
            found |= program
                .read(word)
                .ok_or_else(|| format!("malformed value in {word:?}"))?;
        }
        Ok(found.then_some(program))
    }

    /// Reads an image name as described above. Nothing if it is another image or its tag says nothing.
    #[must_use]
    pub fn from_image(image: &str) -> Option<Self> {
        let path = image.split('@').next().unwrap_or_default();
        let (folder, last) = path.rsplit_once('/')?;
        if folder != "fake" && !folder.ends_with("/fake") {
            return None;
        }
        let (word, tag) = last.split_once(':').unwrap_or((last, ""));
        match word {
            "exit" => {
                let (code, after) = tag.split_once('-').unwrap_or((tag, "0s"));
                Some(Self::exit(code.parse().unwrap_or(0)).after(duration(after)?))
            }
            "crash" => Some(Self::crash_loop()),
            "ignore-term" => Some(Self::forever().ignore_term()),
            "forever" => Some(Self::forever()),
            _ => None,
        }
    }

    /// When and how it ends by itself in that attempt.
    pub(crate) fn natural_end(&self, attempt: u32) -> Option<(Duration, i32)> {
        match self.steady_from {
            Some(from) if attempt >= from => None,
            _ => self.end,
        }
    }

    /// Whether the word is one of ours; nothing if its value is malformed.
    fn read(&mut self, word: &str) -> Option<bool> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let (end_after, end_code) = self.end.unwrap_or_default();
        let (term_after, term_code) = self.on_term.unwrap_or_default();
        match key {
            "exit" => self.end = Some((end_after, value.parse().ok()?)),
            "after" => self.end = Some((duration(value)?, end_code)),
            "term" => self.on_term = Some((term_after, value.parse().ok()?)),
            "term-after" => self.on_term = Some((duration(value)?, term_code)),
            "steady-from" => self.steady_from = Some(value.parse().ok()?),
            "refuse-start" => self.start_error = Some(value.to_owned()),
            "crash" if word == key => self.end = Self::crash_loop().end,
            "forever" if word == key => self.end = None,
            "ignore-term" if word == key => self.on_term = None,
            _ => return Some(false),
        }
        Some(true)
    }
}

/// Which containers a [`Program`] is for. The first that matches counts, in the order of the variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProgramFor {
    /// One container of one pod.
    Container(PodUid, String),
    /// The containers of this name in every pod.
    Name(String),
    /// The containers of this image, as the pod asks for it.
    Image(String),
}

/// Reads a time such as `1m30s`; nothing if it is malformed.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let millis = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
        rest = &rest[letters..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Program, duration};

    #[test]
    fn words_script_a_program() {
        let read = |words: &[&str]| Program::from_words(words.iter().copied());
        let secs = Duration::from_secs;
        let table = [
            (vec!["exit=3"], Program::exit(3)),
            (vec!["after=5s", "exit=1"], Program::exit(1).after(secs(5))),
            (vec!["--verbose", "crash"], Program::crash_loop()),
            (vec!["crash", "steady-from=2"], Program::crash_loop().steady_from(2)),
            (vec!["ignore-term"], Program::forever().ignore_term()),
            (vec!["term=7", "term-after=2s"], Program::forever().on_term(7, secs(2))),
            (
                vec!["refuse-start=no such file"],
                Program::refuses_to_start("no such file"),
            ),
        ];
        for (words, program) in table {
            assert_eq!(read(&words), Ok(Some(program)), "{words:?}");
        }
        assert_eq!(read(&["--exit=3", "serve"]), Ok(None));
        for malformed in ["exit=", "exit=x", "after=5", "term-after=-1s", "steady-from=a"] {
            assert!(
                read(&[malformed]).is_err_and(|text| text.contains(malformed)),
                "{malformed}"
            );
        }
    }

    #[test]
    fn images_script_a_program() {
        let table = [
            ("fake/exit:3", Some(Program::exit(3))),
            (
                "docker.io/fake/exit:3-5s",
                Some(Program::exit(3).after(Duration::from_secs(5))),
            ),
            ("fake/exit", Some(Program::exit(0))),
            ("fake/crash:latest", Some(Program::crash_loop())),
            ("fake/ignore-term", Some(Program::forever().ignore_term())),
            ("fake/app:1", None),
            ("registry:5000/exit:3", None),
            ("app", None),
        ];
        for (image, program) in table {
            assert_eq!(Program::from_image(image), program, "{image}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        for malformed in ["", "5", "s", "5x", "1 s", "18446744073709551615h"] {
            assert_eq!(duration(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_steady_attempt_does_not_end_by_itself() {
        let program = Program::crash_loop().steady_from(2);
        assert!(program.natural_end(1).is_some() && program.natural_end(2).is_none());
    }
}
