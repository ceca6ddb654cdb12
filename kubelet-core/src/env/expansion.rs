//! References of the form `$(NAME)` in values, command lines and paths.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::variables::Env;

/// Replaces each `$(NAME)` by what `lookup` says.
///
/// - A name that is not known leaves the reference as it stands.
/// - `$$` becomes `$`, so that `$$(NAME)` yields `$(NAME)`.
/// - A `$` before anything else, at the end, or before a `(` that is never closed stays.
/// - A name may hold any character but `)`. What is put in is not expanded again.
///
/// Source: kubelet 1.36, `expand.go`.
pub fn expand<'v>(text: &str, lookup: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = reference(rest) {
            match lookup(name) {
                Some(value) => expanded.push_str(value),
                None => {
                    expanded.push_str("$(");
                    expanded.push_str(name);
                    expanded.push(')');
                }
            }
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    expanded
}

/// Expands each word of a command line with the container's final environment.
pub fn expand_command(words: &[String], env: &Env) -> Vec<String> {
    words.iter().map(|word| expand(word, |name| env.get(name))).collect()
}

/// Expands the `subPathExpr` of a mount.
///
/// # Errors
/// [`MissingVariables`] if a variable that is referred to is absent or empty: the path would then be
/// that of something else.
pub fn expand_sub_path(expression: &str, env: &Env) -> Result<String, MissingVariables> {
    let missing = RefCell::new(BTreeSet::new());
    let path = expand(expression, |name| {
        let value = env.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value
    });
    let missing = missing.into_inner();
    if missing.is_empty() {
        Ok(path)
    } else {
        Err(MissingVariables {
            names: missing.into_iter().collect(),
        })
    }
}

/// A path refers to variables that are absent or empty. The container cannot start as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("missing value for {}", names.join(", "))]
#[non_exhaustive]
pub struct MissingVariables {
    /// The variables, sorted.
    pub names: Vec<String>,
}

/// The name in a reference whose `$` was just read, and what follows it.
fn reference(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('(')?.split_once(')')
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert_eq, proptest};

    use super::super::variables::Env;
    use super::{expand, expand_command, expand_sub_path};

    fn env() -> Env {
        Env::from_iter([("A", "1"), ("B", "$(A)"), ("E", ""), ("a b", "odd"), ("$(A", "n")])
    }

    #[test]
    fn references_are_replaced_and_the_rest_stays() {
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)z", "x1y1z"),
            ("$(B)", "$(A)"),
            ("$(E)", ""),
            ("$(a b)", "odd"),
            ("$(NONE)", "$(NONE)"),
            ("$()", "$()"),
            ("$$", "$"),
            ("$$$", "$$"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$", "$"),
            ("x$", "x$"),
            ("$A", "$A"),
            ("$A$(A)", "$A1"),
            ("$(", "$("),
            ("$(A", "$(A"),
            ("$($(A)", "n"),
            ("$(((A)", "$(((A)"),
            ("$é$(A)", "$é1"),
            ("$(A))", "1)"),
        ];
        let env = env();
        for (text, expected) in cases {
            assert_eq!(expand(text, |name| env.get(name)), expected, "{text:?}");
        }
    }

    #[test]
    fn each_word_of_a_command_is_expanded() {
        let words = ["sh".to_owned(), "-c".to_owned(), "echo $(A) $$(A)".to_owned()];
        assert_eq!(expand_command(&words, &env()), ["sh", "-c", "echo 1 $(A)"]);
    }

    #[test]
    fn a_path_needs_every_variable_with_a_value() {
        assert_eq!(expand_sub_path("logs/$(A)", &env()).unwrap(), "logs/1");
        let error = expand_sub_path("$(Z)/$(E)/$(A)/$(Z)", &env()).unwrap_err();
        assert_eq!(error.to_string(), "missing value for E, Z");
    }

    /// The same rules as a machine, where `A` is `1` and nothing else is known.
    fn slowly(text: &str) -> String {
        let text: Vec<char> = text.chars().collect();
        let mut out = String::new();
        let mut at = 0;
        while at < text.len() {
            let close = (at..text.len()).find(|&end| text[end] == ')');
            match (text[at], text.get(at + 1), close) {
                ('$', Some('$'), _) => {
                    out.push('$');
                    at += 2;
                }
                ('$', Some('('), Some(end)) => {
                    let whole: String = text[at..=end].iter().collect();
                    out.push_str(if whole == "$(A)" { "1" } else { &whole });
                    at = end + 1;
                }
                (c, _, _) => {
                    out.push(c);
                    at += 1;
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn text_without_dollars_is_unchanged(text in "[^$]*") {
            prop_assert_eq!(expand(&text, |_| Some("x")), text);
        }

        #[test]
        fn it_agrees_with_reading_one_character_after_the_other(text in "[$()A é]{0,24}") {
            let lookup = |name: &str| (name == "A").then_some("1");
            prop_assert_eq!(expand(&text, lookup), slowly(&text));
        }

        #[test]
        fn doubling_every_dollar_quotes_any_text(text in "\\PC*") {
            let quoted = text.replace('$', "$$");
            prop_assert_eq!(expand(&quoted, |_| Some("x")), text);
        }

        #[test]
        fn values_are_put_in_as_they_are(value in "\\PC*") {
            prop_assert_eq!(expand("<$(A)>", |_| Some(&value)), format!("<{value}>"));
        }
    }
}
