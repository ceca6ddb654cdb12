//! What plugins are asked, and what they answer.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::cache::CacheKey;
use super::duration::parse_duration;
use crate::images::Keyring;
use crate::runtime::RegistryAuth;

/// What a plugin is shown of a pod's service account.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) token: &'a str,
    pub(super) annotations: &'a BTreeMap<String, String>,
}

pub(super) fn request(api_version: &str, repository: &str, shown: Option<Shown<'_>>) -> Vec<u8> {
    let mut request = json!({"kind": "CredentialProviderRequest", "apiVersion": api_version, "image": repository});
    if let Some(shown) = shown {
        request["serviceAccountToken"] = shown.token.into();
        if !shown.annotations.is_empty() {
            request["serviceAccountAnnotations"] = json!(shown.annotations);
        }
    }
    request.to_string().into_bytes()
}

/// A usable answer.
pub(super) struct Answer {
    pub(super) cache_key: CacheKey,
    /// Nothing: as long as the configuration says.
    pub(super) cache_duration: Option<Duration>,
    pub(super) keyring: Keyring,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Response {
    kind: String,
    api_version: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Auth>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Auth {
    username: String,
    password: String,
}

/// Reads an answer. The error quotes nothing of it but names of fields and what tells its version and kind.
pub(super) fn read(text: &[u8], api_version: &str) -> Result<Answer, String> {
    let response: Response = serde_json::from_slice(text).map_err(|error| {
        let words = error.to_string();
        let is_about_names = words.starts_with("unknown field") || words.starts_with("missing field");
        if is_about_names {
            format!("its answer is of no use: {words}")
        } else {
            let (line, column) = (error.line(), error.column());
            format!("its answer is no CredentialProviderResponse in JSON: line {line} column {column}")
        }
    })?;
    if response.kind != "CredentialProviderResponse" {
        return Err(format!(
            "its answer is a {:?}, not a CredentialProviderResponse",
            response.kind
        ));
    }
    if response.api_version != api_version {
        let found = response.api_version;
        return Err(format!("its answer has apiVersion {found:?}, not {api_version:?}"));
    }
    let cache_key = match response.cache_key_type.as_str() {
        "Image" => CacheKey::Image,
        "Registry" => CacheKey::Registry,
        "Global" => CacheKey::Global,
        other => {
            return Err(format!(
                "its answer has cacheKeyType {other:?}, not Image, Registry or Global"
            ));
        }
    };
    let cache_duration = match response.cache_duration {
        Some(text) => Some(parse_duration(&text).ok_or_else(|| format!("its answer has cacheDuration {text:?}"))?),
        None => None,
    };
    let mut keyring = Keyring::new();
    for (registry, auth) in response.auth.unwrap_or_default() {
        keyring.add(&registry, RegistryAuth::basic(auth.username, auth.password));
    }
    Ok(Answer {
        cache_key,
        cache_duration,
        keyring,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CacheKey, read, request};

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn answer(fields: &str) -> String {
        format!(r#"{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}", {fields}}}"#)
    }

    #[test]
    fn a_request_has_version_kind_and_image() {
        let text = String::from_utf8(request(V1, "reg.example/app", None)).unwrap();
        let expected = r#"{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"reg.example/app","kind":"CredentialProviderRequest"}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn an_answer_has_credentials_and_how_long_they_last() {
        let fields = r#""cacheKeyType": "Registry", "cacheDuration": "1h30m", "auth": {"*.example": {"username": "me", "password": "hunter2"}}"#;
        let answer = read(answer(fields).as_bytes(), V1).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(
            (answer.cache_key, answer.cache_duration),
            (CacheKey::Registry, Some(Duration::from_secs(5400)))
        );
        assert_eq!(answer.keyring.lookup("reg.example/app")[0].username, "me");
        let bare = read(self::answer(r#""cacheKeyType": "Image", "auth": null"#).as_bytes(), V1)
            .unwrap_or_else(|why| panic!("{why}"));
        assert!(bare.keyring.is_empty() && bare.cache_duration.is_none());
    }

    #[test]
    fn what_is_no_answer_is_named_and_not_quoted() {
        for (text, expected) in [
            (answer(r#""cacheKeyType": "Pod""#), r#"cacheKeyType "Pod""#),
            (answer(r#""auth": {}"#), r#"cacheKeyType """#),
            (
                answer(r#""cacheKeyType": "Image", "cacheDuration": "-1s""#),
                r#"cacheDuration "-1s""#,
            ),
            (
                answer(r#""cacheKeyType": "Image", "extra": 1"#),
                "unknown field `extra`",
            ),
            (
                answer(r#""cacheKeyType": "Image", "auth": {"x": "hunter2"}"#),
                "line 1 column",
            ),
            (
                answer(r#""cacheKeyType": "Image", "auth": {"x": {"token": "hunter2"}}"#),
                "unknown field `token`",
            ),
            (r#"{"kind": "Pod", "apiVersion": "v1"}"#.to_owned(), r#"a "Pod""#),
            (
                answer(r#""cacheKeyType": "Image""#).replace("/v1\"", "/v1beta1\""),
                "/v1beta1\"",
            ),
            ("hunter2".to_owned(), "line 1 column"),
            (String::new(), "line 1 column 0"),
        ] {
            let Err(error) = read(text.as_bytes(), V1) else {
                panic!("{text} is no answer");
            };
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
