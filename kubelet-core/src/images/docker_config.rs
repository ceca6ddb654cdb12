//! Credentials as docker keeps them, and as pull secrets hold them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::Deserialize;

use super::keyring::Keyring;
use crate::runtime::RegistryAuth;

/// Why a text is no configuration with credentials. It never shows any of it but names of registries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DockerConfigError {
    /// It is not JSON of the expected form.
    #[error("not a docker configuration: {problem} at line {line} column {column}")]
    Json {
        /// What is wrong there.
        problem: &'static str,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// The field `auth` of a registry is not base64 of `user:password`.
    #[error("field auth of registry {registry:?} is not base64 of user:password: {problem}")]
    Auth {
        /// The registry.
        registry: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: Option<BTreeMap<String, Entry>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl Keyring {
    /// Reads a `config.json` of docker, which is what secrets of type `kubernetes.io/dockerconfigjson` hold.
    ///
    /// # Errors
    /// [`DockerConfigError`] names the place.
    pub fn from_docker_config_json(text: &[u8]) -> Result<Self, DockerConfigError> {
        let config: DockerConfig = serde_json::from_slice(text).map_err(|error| refused(&error))?;
        Self::of(config.auths.unwrap_or_default())
    }

    /// Reads the older `.dockercfg`, which is what secrets of type `kubernetes.io/dockercfg` hold.
    ///
    /// # Errors
    /// [`DockerConfigError`] names the place.
    pub fn from_dockercfg(text: &[u8]) -> Result<Self, DockerConfigError> {
        Self::of(serde_json::from_slice(text).map_err(|error| refused(&error))?)
    }

    fn of(entries: BTreeMap<String, Entry>) -> Result<Self, DockerConfigError> {
        let mut keyring = Self::new();
        for (registry, entry) in entries {
            let auth = entry.into_auth().map_err(|problem| DockerConfigError::Auth {
                registry: registry.clone(),
                problem,
            })?;
            keyring.add(&registry, auth);
        }
        Ok(keyring)
    }
}

impl Entry {
    /// `auth` wins over user name and password.
    fn into_auth(self) -> Result<RegistryAuth, &'static str> {
        let (username, password) = match self.auth.as_deref().filter(|auth| !auth.is_empty()) {
            Some(auth) => decode(auth)?,
            None => (self.username.unwrap_or_default(), self.password.unwrap_or_default()),
        };
        let mut auth = RegistryAuth::basic(username, password);
        auth.email = self.email.unwrap_or_default();
        auth.identity_token = self.identitytoken.unwrap_or_default();
        auth.registry_token = self.registrytoken.unwrap_or_default();
        Ok(auth)
    }
}

fn decode(auth: &str) -> Result<(String, String), &'static str> {
    let engine = if auth.ends_with('=') { STANDARD } else { STANDARD_NO_PAD };
    let bytes = engine.decode(auth).map_err(|_| "not base64")?;
    let text = String::from_utf8(bytes).map_err(|_| "not a text")?;
    match text.split_once(':') {
        Some((user, password)) => Ok((user.to_owned(), password.to_owned())),
        None => Err("no colon"),
    }
}

/// The parser's own words quote what it found, which may be a password.
fn refused(error: &serde_json::Error) -> DockerConfigError {
    use serde_json::error::Category;
    DockerConfigError::Json {
        problem: match error.classify() {
            Category::Data => "a value of another type than expected",
            Category::Eof => "an unexpected end",
            Category::Syntax | Category::Io => "no valid JSON",
        },
        line: error.line(),
        column: error.column(),
    }
}

#[cfg(test)]
mod tests {
    use super::{DockerConfigError, Keyring};

    fn json(auths: &str) -> Result<Vec<(String, String)>, DockerConfigError> {
        let keyring = Keyring::from_docker_config_json(auths.as_bytes())?;
        let found = keyring.lookup("reg.example/app");
        Ok(found.iter().map(|a| (a.username.clone(), a.password.clone())).collect())
    }

    fn pair(user: &str, password: &str) -> Vec<(String, String)> {
        vec![(user.to_owned(), password.to_owned())]
    }

    #[test]
    fn auth_wins_over_user_and_password() {
        for (text, expected) in [
            (
                r#"{"auths":{"reg.example":{"username":"a","password":"b"}}}"#,
                pair("a", "b"),
            ),
            (
                r#"{"auths":{"reg.example":{"username":"a","password":"b","auth":"bWU6aHVudGVyMg=="}}}"#,
                pair("me", "hunter2"),
            ),
            (
                r#"{"auths":{"reg.example":{"auth":"bWU6aHVudGVyMg"}}}"#,
                pair("me", "hunter2"),
            ),
            (r#"{"auths":{"reg.example":{"auth":"bWU6YTpi"}}}"#, pair("me", "a:b")),
            (
                r#"{"auths":{"reg.example":{"auth":""}}, "credsStore": "x", "HttpHeaders": {}}"#,
                pair("", ""),
            ),
            (r#"{"auths":{}}"#, Vec::new()),
            ("{}", Vec::new()),
        ] {
            assert_eq!(json(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn tokens_are_kept() {
        let text =
            r#"{"reg.example":{"auth":"bWU6","email":"me@x.example","identitytoken":"t1","registrytoken":"t2"}}"#;
        let keyring = Keyring::from_dockercfg(text.as_bytes()).unwrap();
        let auth = keyring.lookup("reg.example/app")[0];
        assert_eq!(
            (
                auth.email.as_str(),
                auth.identity_token.as_str(),
                auth.registry_token.as_str()
            ),
            ("me@x.example", "t1", "t2")
        );
    }

    #[test]
    fn an_error_names_the_place_and_quotes_no_password() {
        for (text, expected) in [
            (r#"{"auths":{"reg.example":"hunter2"}}"#, "line 1 column 33"),
            (r#"{"auths":{"reg.example":{"auth":"hunter2!"}}}"#, "\"reg.example\""),
            (r#"{"auths":{"reg.example":{"auth":"aHVudGVyMg=="}}}"#, "no colon"),
            (
                r#"{"auths":{"reg.example":{"password":hunter2}}}"#,
                "no valid JSON at line 1",
            ),
            (r#"{"auths":"#, "unexpected end"),
        ] {
            let error = json(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
