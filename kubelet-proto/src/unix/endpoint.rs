use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path that the address of a unix socket has room for, in bytes.
const LONGEST_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Where a service listens: the absolute path of a unix socket.
///
/// Written as `unix:///run/peer.sock`, as `unix:/run/peer.sock` or as the plain path. The path is taken as it stands, so `%20` is no
/// space. The upstream kubelet 1.36 reads the same forms; unlike it, a name between `unix://` and the path is an error here,
/// since it is a path that lacks its first slash.
///
/// ```
/// use kubelet_proto::unix::Endpoint;
///
/// let endpoint: Endpoint = "unix:///run/containerd/containerd.sock".parse()?;
/// assert_eq!(endpoint.path(), "/run/containerd/containerd.sock");
/// assert!("tcp://127.0.0.1:1234".parse::<Endpoint>().is_err());
/// # Ok::<(), kubelet_proto::unix::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    path: PathBuf,
}

impl Endpoint {
    /// The socket at a path, which need not be there yet.
    ///
    /// # Errors
    /// If the path is not absolute, names no file, holds a zero byte or is longer than the address of a socket may be: 107 bytes on
    /// Linux.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, EndpointError> {
        let path = path.into();
        match check(&path) {
            Ok(()) => Ok(Self { path }),
            Err(reason) => Err(EndpointError {
                endpoint: path.display().to_string(),
                reason,
            }),
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Written as `unix://` and the path.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| EndpointError {
            endpoint: text.to_owned(),
            reason,
        };
        let path = match text.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            // A colon further on belongs to a path.
            Some((scheme, _)) if !scheme.contains('/') => return Err(fail(Reason::Scheme)),
            _ => text,
        };
        check(Path::new(path)).map_err(fail)?;
        Ok(Self { path: path.into() })
    }
}

/// A text or path that is no [`Endpoint`]. It names what was given and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint:?} is no endpoint: {reason}")]
pub struct EndpointError {
    endpoint: String,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    Empty,
    Scheme,
    Abstract,
    Relative,
    Folder,
    Zero,
    TooLong(usize),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::Scheme => f.write_str("only unix sockets are served, as unix:///path or /path"),
            Self::Abstract => f.write_str("abstract sockets are not served"),
            Self::Relative => f.write_str("its path must be absolute, as in unix:///path with three slashes"),
            Self::Folder => f.write_str("its path must end with the name of a socket"),
            Self::Zero => f.write_str("its path holds a zero byte"),
            Self::TooLong(bytes) => write!(
                f,
                "its path has {bytes} bytes, and the address of a unix socket has room for {LONGEST_PATH}"
            ),
        }
    }
}

fn check(path: &Path) -> Result<(), Reason> {
    let bytes = path.as_os_str().as_bytes();
    match bytes.first() {
        None => Err(Reason::Empty),
        Some(b'@') => Err(Reason::Abstract),
        Some(b'/') => Ok(()),
        Some(_) => Err(Reason::Relative),
    }?;
    if bytes.contains(&0) {
        return Err(Reason::Zero);
    }
    // `Path` overlooks what the kernel takes for a folder.
    if path.file_name().is_none() || bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
        return Err(Reason::Folder);
    }
    if bytes.len() > LONGEST_PATH {
        return Err(Reason::TooLong(bytes.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::{Endpoint, LONGEST_PATH};

    fn path(text: &str) -> String {
        text.parse::<Endpoint>().unwrap().path().to_str().unwrap().to_owned()
    }

    fn error(text: &str) -> String {
        text.parse::<Endpoint>().unwrap_err().to_string()
    }

    #[test]
    fn all_written_forms_name_the_same_path() {
        for text in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
            assert_eq!(path(text), "/run/a.sock");
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), "unix:///run/a.sock");
        }
        assert_eq!(path("unix:///run/a%20b?c#d"), "/run/a%20b?c#d");
        assert_eq!(path("/run/pci-0000:00.sock"), "/run/pci-0000:00.sock");
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_name() {
        assert_eq!(error(""), "\"\" is no endpoint: it is empty");
        assert_eq!(error("unix://"), "\"unix://\" is no endpoint: it is empty");
        for text in ["tcp://127.0.0.1:80", "npipe:////./pipe/a", "http://a/b", "UNIX:///a"] {
            let expected = format!("{text:?} is no endpoint: only unix sockets are served, as unix:///path or /path");
            assert_eq!(error(text), expected);
        }
        for text in ["run/a.sock", "a.sock", "./a", "unix://run/a.sock", "unix:a.sock"] {
            assert!(error(text).contains("must be absolute"), "{text}");
        }
        for text in ["@a", "unix:@a", "unix://@a"] {
            assert!(error(text).contains("abstract"), "{text}");
        }
        for text in ["/", "unix:///", "/run/", "/run/..", "/run/."] {
            assert!(error(text).contains("name of a socket"), "{text}");
        }
        assert!(error("/run/a\0b").contains("zero byte"));
    }

    #[test]
    fn a_path_may_be_as_long_as_the_address() {
        let longest = format!("/{}", "a".repeat(LONGEST_PATH - 1));
        assert_eq!(path(&longest), longest);
        let text = format!("unix://{longest}a");
        let length = LONGEST_PATH + 1;
        assert!(
            error(&text).contains(&format!("its path has {length} bytes")),
            "{}",
            error(&text)
        );
    }

    #[test]
    fn a_path_need_not_be_text() {
        let odd = OsString::from_vec(b"/run/\xff.sock".to_vec());
        assert_eq!(Endpoint::new(odd.clone()).unwrap().path(), odd);
    }
}
