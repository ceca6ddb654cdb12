//! Reads objects out of the text of a YAML or JSON file.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::object::{Object, ObjectKind};
use crate::validation::NameKind;

/// Longest key in the data of a secret or config map.
const MAX_KEY_BYTES: usize = 253;

/// The kinds that [`parse`] understands.
pub(super) const KINDS: [ObjectKind; 4] = [
    ObjectKind::ConfigMap,
    ObjectKind::RuntimeClass,
    ObjectKind::Secret,
    ObjectKind::Service,
];

/// What is wrong with the text.
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    /// Line in the file, from 1.
    pub(super) line: usize,
    pub(super) message: String,
}

/// What a text holds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Manifest {
    pub(super) objects: Vec<Object>,
    /// The kinds of the documents that are no business of ours.
    pub(super) skipped: Vec<String>,
}

/// Reads all documents. One that is wrong makes the whole text wrong: half of a file is not applied.
pub(super) fn parse(text: &str) -> Result<Manifest, Fault> {
    let mut manifest = Manifest::default();
    for document in documents(text) {
        document.read_into(&mut manifest)?;
    }
    Ok(manifest)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
}

/// One document, with the number of lines before it.
struct Document<'a> {
    text: &'a str,
    lines_before: usize,
}

/// Splits at the lines that begin with `---`.
///
/// YAML allows such a line nowhere else, not even inside a literal block, so that no parser is needed.
fn documents(text: &str) -> Vec<Document<'_>> {
    let mut starts = vec![(0, 0)];
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marks = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if marks {
            starts.push((at, number));
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(&(start, lines_before), end)| Document {
            text: &text[start..end],
            lines_before,
        })
        .filter(|document| !document.is_blank())
        .collect()
}

impl Document<'_> {
    fn is_blank(&self) -> bool {
        self.body().lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#')
        })
    }

    fn body(&self) -> &str {
        self.text.strip_prefix("---").unwrap_or(self.text)
    }

    /// Whether an error may quote the text. What cannot be parsed may be a secret, or a file that is
    /// nothing but a password.
    fn is_surely_public(&self) -> bool {
        let says = |word| self.text.contains(word);
        (says("ConfigMap") || says("Service") || says("RuntimeClass")) && !says("Secret")
    }

    fn read_into(&self, manifest: &mut Manifest) -> Result<(), Fault> {
        let head: Head = match self.read() {
            Ok(head) => head,
            Err(at) => {
                let fault = match self.read::<IgnoredAny>() {
                    Err(syntax) if self.is_surely_public() => syntax,
                    Err(syntax) => Fault {
                        message: "not valid YAML or JSON".into(),
                        ..syntax
                    },
                    Ok(_) => Fault {
                        message: "not an object with apiVersion and kind".into(),
                        ..at
                    },
                };
                return Err(fault.or_first_line(self));
            }
        };
        let object = match (head.api_version.as_str(), head.kind.as_str()) {
            ("v1", "Secret") => self.secret()?.into(),
            ("v1", "ConfigMap") => {
                let mut map: ConfigMap = self.typed()?;
                self.complete("ConfigMap", &mut map.metadata)?;
                let texts = map.data.iter().flat_map(|data| data.keys());
                let bytes = map.binary_data.iter().flat_map(|data| data.keys());
                self.check_keys(texts.chain(bytes))?;
                map.into()
            }
            ("v1", "Service") => {
                let mut service: Service = self.typed()?;
                self.complete("Service", &mut service.metadata)?;
                service.into()
            }
            ("node.k8s.io/v1", "RuntimeClass") => {
                let mut class: RuntimeClass = self.typed()?;
                self.named("RuntimeClass", &class.metadata)?;
                class.metadata.namespace = None;
                // Nobody else checks it here.
                if let Some(why) = NameKind::Label.faults(&class.handler).first() {
                    return Err(self.fault(format!("RuntimeClass with handler {:?}: {why}", class.handler)));
                }
                class.into()
            }
            _ => {
                manifest.skipped.push(head.kind);
                return Ok(());
            }
        };
        manifest.objects.push(object);
        Ok(())
    }

    fn secret(&self) -> Result<Secret, Fault> {
        let mut secret: Secret = self.read().map_err(|fault| Fault {
            message: "not a valid Secret; values under data must be base64 \
                      (details are left out, they may quote the secret)"
                .into(),
            ..fault.or_first_line(self)
        })?;
        self.complete("Secret", &mut secret.metadata)?;
        let texts = secret.string_data.take().unwrap_or_default();
        if !texts.is_empty() {
            let data = secret.data.get_or_insert_default();
            data.extend(
                texts
                    .into_iter()
                    .map(|(key, text)| (key, ByteString(text.into_bytes()))),
            );
        }
        self.check_keys(secret.data.iter().flat_map(|data| data.keys()))?;
        Ok(secret)
    }

    fn complete(&self, kind: &str, metadata: &mut ObjectMeta) -> Result<(), Fault> {
        self.named(kind, metadata)?;
        metadata.namespace.get_or_insert_with(|| "default".to_owned());
        Ok(())
    }

    fn named(&self, kind: &str, metadata: &ObjectMeta) -> Result<(), Fault> {
        match metadata.name.as_deref() {
            None | Some("") => Err(self.fault(format!("{kind} without metadata.name"))),
            Some(_) => Ok(()),
        }
    }

    /// Keys become file names in volumes, and nobody else checks them here: `../../x` must not get in.
    fn check_keys<'k>(&self, mut keys: impl Iterator<Item = &'k String>) -> Result<(), Fault> {
        match keys.find(|key| !is_data_key(key)) {
            None => Ok(()),
            Some(key) => Err(self.fault(format!(
                "data key {key:?} is not made of letters, digits, '-', '_' and '.', \
                 is too long or begins with two dots"
            ))),
        }
    }

    fn typed<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        self.read().map_err(|fault| fault.or_first_line(self))
    }

    /// Reads JSON as JSON, since YAML has no surrogate pairs, and everything else as YAML.
    fn read<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        if self.body().trim_start().starts_with('{')
            && let Ok(value) = serde_json::from_str(self.body())
        {
            return Ok(value);
        }
        from_yaml(self.text).or_else(|_| {
            // Once more, with the lines before, so that the text of the error counts in the file.
            from_yaml(&("\n".repeat(self.lines_before) + self.text))
        })
    }

    fn fault(&self, message: String) -> Fault {
        Fault { line: 0, message }.or_first_line(self)
    }
}

impl Fault {
    /// Points at the start of the document if there is no better place.
    fn or_first_line(mut self, document: &Document<'_>) -> Self {
        self.line = self.line.max(document.lines_before + 1);
        self
    }
}

fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    // A snippet would copy lines of the file, and so perhaps a secret, into the error.
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| Fault {
        line: error
            .location()
            .and_then(|location| usize::try_from(location.line()).ok())
            .unwrap_or(0),
        message: error.to_string(),
    })
}

fn is_data_key(key: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !key.is_empty() && key.len() <= MAX_KEY_BYTES && key.bytes().all(allowed) && key != "." && !key.starts_with("..")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;
    use proptest::proptest;

    use super::super::object::Object;
    use super::parse;

    fn secret_data(object: &Object) -> BTreeMap<String, Vec<u8>> {
        let Object::Secret(secret) = object else {
            panic!("{object:?} is no secret");
        };
        let data = secret.data.clone().unwrap_or_default();
        data.into_iter().map(|(key, ByteString(bytes))| (key, bytes)).collect()
    }

    #[test]
    fn several_documents_are_read_and_others_are_skipped() {
        let text = "\
# a comment before the first document
---
apiVersion: v1
kind: Secret
metadata: {name: db}
data: {user: YWRtaW4=, password: b2xk}
stringData: {password: new}
--- # next
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data:
  port: 8080
  script: |
    --- not a document
---
apiVersion: v1
kind: Pod
metadata: {name: web}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: sandboxed}
handler: kata
---
";
        let manifest = parse(text).unwrap();
        assert_eq!(manifest.skipped, ["Pod"]);
        let keys: Vec<_> = manifest.objects.iter().map(|o| o.key().to_string()).collect();
        assert_eq!(
            keys,
            ["secret default/db", "configmap shop/settings", "runtimeclass sandboxed"]
        );
        let data = secret_data(&manifest.objects[0]);
        assert_eq!(data["user"], b"admin");
        assert_eq!(data["password"], b"new", "stringData wins");
        let Object::ConfigMap(map) = &manifest.objects[1] else {
            panic!("a config map");
        };
        let data = map.data.as_ref().unwrap();
        assert_eq!(data["port"], "8080");
        assert_eq!(data["script"], "--- not a document\n");
    }

    #[test]
    fn json_is_read_as_json() {
        let text = r#"{"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a"}, "data": {"k": "\ud83d\ude00"}}"#;
        let manifest = parse(text).unwrap();
        let Object::ConfigMap(map) = &manifest.objects[0] else {
            panic!("a config map");
        };
        assert_eq!(map.data.as_ref().unwrap()["k"], "😀");
    }

    #[test]
    fn faults_name_their_line_and_quote_no_secret() {
        let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n";
        let cases = [
            ("kind: [", 5, ""),
            ("hunter2", 5, "apiVersion"),
            ("p: *hunter2", 5, "not valid YAML"),
            ("kind: ConfigMap\nmetadata: *name", 6, "anchor"),
            ("kind: ConfigMap", 5, "apiVersion"),
            ("apiVersion: v1\nkind: ConfigMap", 4, "without metadata.name"),
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: [1]",
                8,
                "line 8",
            ),
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {../x: y}",
                4,
                "\"../x\"",
            ),
            (
                "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: a}\nhandler: a/b",
                4,
                "handler \"a/b\"",
            ),
            (
                "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  p: hunter2!",
                9,
                "not a valid Secret",
            ),
            (
                "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: hunter2",
                8,
                "not a valid Secret",
            ),
        ];
        for (bad, line, words) in cases {
            let fault = parse(&format!("{good}{bad}\n")).unwrap_err();
            assert_eq!(fault.line, line, "{bad:?}: {fault:?}");
            assert!(fault.message.contains(words), "{bad:?}: {fault:?}");
            assert!(!fault.message.contains("hunter2"), "{bad:?}: {fault:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(---|[ -~]|\n|é|\r){0,80}") {
            let _ = parse(&text);
        }
    }
}
