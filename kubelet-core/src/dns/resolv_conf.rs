//! Reads a `resolv.conf`.

use super::{DnsConfig, option_name};

/// How many bytes of a `resolv.conf` are read.
pub const MAX_RESOLV_CONF_BYTES: u64 = 10 << 20;

/// A `resolv.conf` that says something that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: nameserver list is empty")]
#[non_exhaustive]
pub struct ResolvConfError {
    /// The line, from 1 on.
    pub line: usize,
}

/// Reads the lines that matter: servers, the last search line, options. Lines that begin with `#` are comments, `;` is none.
///
/// # Errors
/// [`ResolvConfError`] for a `nameserver` without an address.
pub fn parse_resolv_conf(text: &str) -> Result<DnsConfig, ResolvConfError> {
    let mut config = DnsConfig::default();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                let server = words.next().ok_or(ResolvConfError { line: index + 1 })?;
                config.servers.push(server.to_owned());
            }
            Some("search") => {
                config.searches = words
                    .filter(|path| *path != ".")
                    .map(|path| path.strip_suffix('.').unwrap_or(path).to_owned())
                    .collect();
            }
            Some("options") => {
                for option in words {
                    match config
                        .options
                        .iter_mut()
                        .find(|known| option_name(known) == option_name(option))
                    {
                        Some(known) => option.clone_into(known),
                        None => config.options.push(option.to_owned()),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::parse_resolv_conf;

    #[test]
    fn the_lines_that_matter_are_read() {
        let text = "# made by hand\n; not a comment\ndomain old.example\nsearch first.example\n\
                    nameserver 192.0.2.1\nnameserver\t192.0.2.2 trailing\noptions ndots:2 rotate\noptions ndots:3\n\
                    search a.example. . b.example\n";
        let config = parse_resolv_conf(text).unwrap();
        assert_eq!(config.servers, ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(config.searches, ["a.example", "b.example"]);
        assert_eq!(config.options, ["ndots:3", "rotate"]);
    }

    #[test]
    fn a_nameserver_without_an_address_is_an_error_with_its_line() {
        let error = parse_resolv_conf("search x\nnameserver \n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: nameserver list is empty");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,200}") {
            let _ = parse_resolv_conf(&text);
        }
    }
}
