//! `CredentialProviderConfig`: which plugins there are.

mod tokens;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

pub(super) use self::tokens::TokenAttributes;
use super::duration::parse_duration;
use crate::error::BoxError;
use crate::images::pattern::RegistryPattern;

/// Why plugins cannot be configured as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialConfigError {
    /// The configuration cannot be read.
    #[error("cannot read the credential provider configuration {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: BoxError,
    },
    /// The configuration is not valid.
    #[error("credential provider configuration {}: {}", path.display(), problems.join("; "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Each with its field and value.
        problems: Vec<String>,
    },
    /// A plugin is not there, or cannot be run.
    #[error("program {} of credential provider {provider:?} cannot be run", path.display())]
    Program {
        /// The plugin's name.
        provider: String,
        /// Where it should be.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// One plugin, checked.
pub(super) struct ProviderConfig {
    pub(super) name: String,
    pub(super) api_version: String,
    pub(super) match_images: Vec<RegistryPattern>,
    pub(super) default_cache_duration: Duration,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// What it is told of service accounts; nothing: it gives credentials of the node.
    pub(super) tokens: Option<TokenAttributes>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<Provider>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Provider {
    #[serde(default)]
    name: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    token_attributes: Option<tokens::Attributes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Reads a file, or the files of a folder.
pub(super) fn read(path: &Path) -> Result<Vec<ProviderConfig>, CredentialConfigError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| CredentialConfigError::Read {
            path,
            source: error.into(),
        }
    };
    let files = if path.is_dir() {
        files_in(path).map_err(failed(path))?
    } else {
        vec![path.to_owned()]
    };
    let (mut all, mut names) = (Vec::new(), BTreeSet::new());
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(failed(&file))?;
        let mut problems = Vec::new();
        parse(&text, &mut names, &mut all, &mut problems);
        if !problems.is_empty() {
            return Err(CredentialConfigError::Invalid { path: file, problems });
        }
    }
    if all.is_empty() {
        return Err(CredentialConfigError::Invalid {
            path: path.to_owned(),
            problems: vec!["providers: at least one is required".to_owned()],
        });
    }
    Ok(all)
}

fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_config = path
            .extension()
            .is_some_and(|ending| ["json", "yaml", "yml"].iter().any(|known| ending == *known));
        if is_config && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn parse(text: &str, names: &mut BTreeSet<String>, all: &mut Vec<ProviderConfig>, problems: &mut Vec<String>) {
    let options = serde_saphyr::options! { with_snippet: false };
    let file: ConfigFile = match serde_saphyr::from_str_with_options(text, options) {
        Ok(file) => file,
        Err(error) => {
            problems.push(error.to_string());
            return;
        }
    };
    if file.kind != "CredentialProviderConfig" {
        problems.push(format!(
            "kind: invalid value {:?}: must be CredentialProviderConfig",
            file.kind
        ));
    }
    check_version("apiVersion", &file.api_version, "kubelet.config.k8s.io", problems);
    for (index, provider) in file.providers.into_iter().enumerate() {
        let before = problems.len();
        let checked = check(provider, &format!("providers[{index}]"), names, problems);
        if problems.len() == before {
            all.extend(checked);
        }
    }
}

fn check(
    provider: Provider,
    at: &str,
    names: &mut BTreeSet<String>,
    problems: &mut Vec<String>,
) -> Option<ProviderConfig> {
    let name = provider.name;
    let mut wrong = |field: &str, value: &str, why: &str| {
        problems.push(format!("{at}.{field}: invalid value {value:?}: {why}"));
    };
    if name.is_empty() {
        wrong("name", &name, "required");
    } else if name == "." || name == ".." || name.contains('/') || name.contains(char::is_whitespace) {
        wrong("name", &name, "must be the name of a file, without '/' and spaces");
    } else if !names.insert(name.clone()) {
        wrong("name", &name, "there is another one of that name");
    }
    if provider.match_images.is_empty() {
        wrong("matchImages", "", "at least one is required");
    }
    let mut match_images = Vec::new();
    for (index, image) in provider.match_images.iter().enumerate() {
        match RegistryPattern::parse(image) {
            Ok(pattern) => match_images.push(pattern),
            Err(why) => wrong(&format!("matchImages[{index}]"), image, why),
        }
    }
    let duration = provider.default_cache_duration.as_deref();
    let default_cache_duration = duration.and_then(parse_duration);
    match (duration, default_cache_duration) {
        (None, _) => wrong("defaultCacheDuration", "", "required"),
        (Some(text), None) => wrong(
            "defaultCacheDuration",
            text,
            "must be a duration of 0s or more, such as 10m",
        ),
        (Some(_), Some(_)) => {}
    }
    for (index, variable) in provider.env.iter().flatten().enumerate() {
        // Its value may be secret.
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) || variable.value.contains('\0') {
            wrong(
                &format!("env[{index}].name"),
                &variable.name,
                "must be the name of a variable",
            );
        }
    }
    for (index, arg) in provider.args.iter().flatten().enumerate() {
        if arg.contains('\0') {
            wrong(&format!("args[{index}]"), "…", "must not hold a zero byte");
        }
    }
    let attributes = provider.token_attributes;
    let tokens = attributes.and_then(|attributes| tokens::check(attributes, &provider.api_version, &mut wrong));
    check_version(
        &format!("{at}.apiVersion"),
        &provider.api_version,
        "credentialprovider.kubelet.k8s.io",
        problems,
    );
    let env = provider.env.unwrap_or_default();
    Some(ProviderConfig {
        name,
        api_version: provider.api_version,
        match_images,
        default_cache_duration: default_cache_duration?,
        args: provider.args.unwrap_or_default(),
        env: env
            .into_iter()
            .map(|variable| (variable.name, variable.value))
            .collect(),
        tokens,
    })
}

fn check_version(field: &str, found: &str, group: &str, problems: &mut Vec<String>) {
    let version = found.strip_prefix(group).and_then(|rest| rest.strip_prefix('/'));
    if !matches!(version, Some("v1" | "v1beta1" | "v1alpha1")) {
        problems.push(format!(
            "{field}: invalid value {found:?}: must be {group}/v1, v1beta1 or v1alpha1"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CredentialConfigError, ProviderConfig, read};

    const GOOD: &str = "
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr
  apiVersion: credentialprovider.kubelet.k8s.io/v1beta1
  matchImages: ['*.dkr.ecr.*.amazonaws.com', 'reg.example:5000/team']
  defaultCacheDuration: 12h0m0s
  args: [get-credentials]
  env: [{name: AWS_PROFILE, value: hunter2}]
";

    fn config(text: &str) -> Result<Vec<ProviderConfig>, CredentialConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_good_configuration_is_read() {
        let all = config(GOOD).unwrap_or_else(|error| panic!("{error}"));
        let one = &all[0];
        assert_eq!(
            (one.name.as_str(), one.args.len(), one.match_images.len()),
            ("ecr", 1, 2)
        );
        assert_eq!(one.default_cache_duration, Duration::from_secs(12 * 3600));
        assert_eq!(one.env, [("AWS_PROFILE".to_owned(), "hunter2".to_owned())]);
    }

    #[test]
    fn each_mistake_is_named_with_field_and_value() {
        for (good, bad, expected) in [
            (
                "kubelet.config.k8s.io/v1",
                "v1",
                r#"apiVersion: invalid value "v1": must be kubelet.config.k8s.io/v1"#,
            ),
            ("CredentialProviderConfig", "Pod", r#"kind: invalid value "Pod""#),
            (
                "name: ecr",
                "name: ''",
                r#"providers[0].name: invalid value "": required"#,
            ),
            ("name: ecr", "name: a/b", r#"providers[0].name: invalid value "a/b""#),
            ("name: ecr", "name: '..'", r#"providers[0].name: invalid value "..""#),
            ("name: ecr", "name: 'a b'", r#"providers[0].name: invalid value "a b""#),
            (
                "k8s.io/v1beta1",
                "k8s.io/v2",
                r#"providers[0].apiVersion: invalid value "credentialprovider.kubelet.k8s.io/v2""#,
            ),
            (
                "'*.dkr.ecr.*.amazonaws.com'",
                "'https://x'",
                r#"providers[0].matchImages[0]: invalid value "https://x""#,
            ),
            (
                "['*.dkr.ecr.*.amazonaws.com', 'reg.example:5000/team']",
                "[]",
                "providers[0].matchImages",
            ),
            (
                "12h0m0s",
                "-1s",
                r#"providers[0].defaultCacheDuration: invalid value "-1s""#,
            ),
            (
                "  defaultCacheDuration: 12h0m0s\n",
                "",
                "providers[0].defaultCacheDuration: invalid value \"\": required",
            ),
            ("args:", "arguments:", "unknown field"),
            (
                "name: AWS_PROFILE",
                "name: ''",
                r#"providers[0].env[0].name: invalid value """#,
            ),
            (
                "  args:",
                "  tokenAttributes: {serviceAccountTokenAudience: x}\n  args:",
                r#"providers[0].tokenAttributes.cacheType: invalid value "": required"#,
            ),
        ] {
            assert!(GOOD.contains(good));
            let Err(error) = config(&GOOD.replace(good, bad)) else {
                panic!("{bad} is taken");
            };
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains("config.yaml"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert!(config("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig").is_err());
    }

    #[test]
    fn the_files_of_a_folder_are_read_in_order_and_share_names() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("b.yaml", GOOD);
        write("a.yml", &GOOD.replace("name: ecr", "name: gcr"));
        write("c.txt", "not read");
        let names = |all: Vec<ProviderConfig>| all.into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(read(dir.path()).map(names).unwrap(), ["gcr", "ecr"]);
        write(
            "c.json",
            r#"{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
            {"name": "ecr", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": ["x"], "defaultCacheDuration": "0s"}]}"#,
        );
        let Err(error) = read(dir.path()) else {
            panic!("a name is taken twice");
        };
        let text = error.to_string();
        assert!(
            text.contains("c.json") && text.contains(r#"providers[0].name: invalid value "ecr""#),
            "{text}"
        );
    }
}
