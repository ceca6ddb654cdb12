use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Access, ImageVerification, Known, MAX_HOLDERS, Verdict, covering, trimmed, verdict};
use crate::images::provider::ServiceAccountKey;
use crate::images::pull_secrets::{CredentialOrigin, PullCredential};
use crate::runtime::RegistryAuth;

const NAME: &str = "reg.example/team/app:1";
const REPOSITORY: &str = "reg.example/team/app";

fn credential(uid: &str, name: &str, password: &str) -> PullCredential {
    PullCredential {
        auth: RegistryAuth::basic("me", password),
        origin: CredentialOrigin::Secret {
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        },
    }
}

fn granted(with: &[Option<&PullCredential>]) -> Access {
    let mut access = Access::default();
    for credential in with {
        access.grant(*credential);
    }
    access
}

fn pulled(access: Access) -> Known {
    Known::Pulled(BTreeMap::from([(REPOSITORY.to_owned(), access)]))
}

#[test]
fn each_policy_says_which_images_are_verified() {
    use ImageVerification::{AlwaysVerify, NeverVerify, NeverVerifyAllowlistedImages, NeverVerifyPreloadedImages};
    let list = |entries: &[&str]| NeverVerifyAllowlistedImages(entries.iter().map(|e| (*e).to_owned()).collect());
    let secret = granted(&[Some(&credential("1", "a", "x"))]);
    let (node, empty) = (granted(&[None]), Access::default());
    let ask = Verdict::AskCredentials(secret.clone());
    let other_name = Known::Pulled(BTreeMap::from([("reg.example/other".to_owned(), node.clone())]));
    for (policy, nothing, intended, unreadable, by_secret, by_node, by_nobody, elsewhere) in [
        (NeverVerify, true, true, true, Verdict::Use, true, true, true),
        (
            NeverVerifyPreloadedImages,
            true,
            false,
            false,
            ask.clone(),
            true,
            false,
            false,
        ),
        (AlwaysVerify, false, false, false, ask.clone(), true, false, false),
        (list(&[]), false, false, false, ask.clone(), true, false, false),
        (
            list(&["reg.example/team/app"]),
            true,
            true,
            false,
            Verdict::Use,
            true,
            true,
            true,
        ),
        (
            list(&["reg.example/team/*"]),
            true,
            true,
            false,
            Verdict::Use,
            true,
            true,
            true,
        ),
        (
            list(&["reg.example/tea/*", "reg.example/team"]),
            false,
            false,
            false,
            ask,
            true,
            false,
            false,
        ),
    ] {
        let is = |uses: bool| if uses { Verdict::Use } else { Verdict::Pull };
        for (known, expected) in [
            (Known::Nothing, is(nothing)),
            (Known::Intended, is(intended)),
            (Known::Unreadable, is(unreadable)),
            (pulled(secret.clone()), by_secret),
            (pulled(node.clone()), is(by_node)),
            (pulled(empty.clone()), is(by_nobody)),
            (other_name.clone(), is(elsewhere)),
        ] {
            assert_eq!(
                verdict(&policy, NAME, REPOSITORY, &known),
                expected,
                "{policy:?} {known:?}"
            );
        }
    }
}

#[test]
fn a_secret_covers_by_content_or_as_the_same_object() {
    let access = granted(&[Some(&credential("1", "a", "x"))]);
    for (of_pod, covers) in [
        (credential("1", "a", "x"), true),
        (credential("2", "b", "x"), true),
        (credential("1", "a", "rotated"), true),
        (credential("2", "a", "guess"), false),
        (credential("1", "b", "guess"), false),
    ] {
        assert_eq!(
            covering(&access, std::slice::from_ref(&of_pod)).is_some(),
            covers,
            "{of_pod:?}"
        );
    }
    let nameless = granted(&[Some(&credential("", "a", "x"))]);
    assert!(
        covering(&nameless, &[credential("", "a", "guess")]).is_none(),
        "who has no UID may be another"
    );
    let node = PullCredential {
        origin: CredentialOrigin::Node,
        ..credential("1", "a", "x")
    };
    assert!(covering(&access, &[node]).is_none());
    assert!(covering(&access, &[]).is_none());
}

#[test]
fn an_account_covers_as_the_same_object_alone() {
    let of_account = |uid: &str, name: &str, password: &str| PullCredential {
        auth: RegistryAuth::basic("me", password),
        origin: CredentialOrigin::ServiceAccount(ServiceAccountKey::new("default", name, uid)),
    };
    let mut access = Access::default();
    let one = of_account("1", "a", "x");
    assert!(access.grant(Some(&one)) && !access.grant(Some(&one)));
    assert!(
        !access.grant(Some(&of_account("1", "a", "later"))),
        "its credentials come and go"
    );
    for (of_pod, covers) in [
        (of_account("1", "a", "later"), true),
        (of_account("2", "a", "x"), false),
        (of_account("1", "b", "x"), false),
        (credential("1", "a", "x"), false),
    ] {
        assert_eq!(
            covering(&access, std::slice::from_ref(&of_pod)).is_some(),
            covers,
            "{of_pod:?}"
        );
    }
    let nameless = granted(&[Some(&of_account("", "a", "x"))]);
    assert!(covering(&nameless, &[of_account("", "a", "x")]).is_none());
    let known = pulled(access.clone());
    let verdict = verdict(&ImageVerification::AlwaysVerify, NAME, REPOSITORY, &known);
    assert_eq!(verdict, Verdict::AskCredentials(access.clone()));
    assert!(access.grant(Some(&credential("1", "a", "x"))), "a secret comes on top");
    assert_eq!(
        (
            access.kubernetes_secrets.len(),
            access.kubernetes_service_accounts.len()
        ),
        (1, 1)
    );
    assert!(access.grant(None) && access.kubernetes_service_accounts.is_empty());
}

#[test]
fn a_pull_grants_what_its_credentials_are_worth() {
    let (a, b) = (credential("1", "a", "x"), credential("2", "b", "y"));
    let mut access = Access::default();
    assert!(access.grant(Some(&a)) && !access.grant(Some(&a)) && access.grant(Some(&b)));
    assert!(
        access.grant(Some(&credential("1", "a", "rotated"))),
        "a rotated secret takes the place of the old one"
    );
    assert_eq!(access.kubernetes_secrets.len(), 2);
    assert!(access.grant(None) && access.kubernetes_secrets.is_empty() && access.node_pods_accessible);
    assert!(!access.grant(Some(&a)), "every pod has access already");
    let mut many = Access::default();
    for count in 0..150 {
        many.grant(Some(&credential(&format!("uid-{count}"), "a", &format!("{count}"))));
    }
    assert_eq!(many.kubernetes_secrets.len(), MAX_HOLDERS);
}

#[test]
fn tags_and_digests_are_no_part_of_a_name() {
    for (image, name) in [
        ("app", "app"),
        ("app:1", "app"),
        ("host:5000/app", "host:5000/app"),
        ("host:5000/app:1@sha256:00", "host:5000/app"),
        ("host:5000/app@sha256:00", "host:5000/app"),
    ] {
        assert_eq!(trimmed(image), name);
    }
}

#[test]
fn entries_of_a_list_are_checked() {
    let check = |entry: &str| ImageVerification::NeverVerifyAllowlistedImages(vec![entry.to_owned()]).check();
    for good in ["nginx", "reg.example:5000/app", "reg.example/*", "reg.example:5000/*"] {
        assert_eq!(check(good), Ok(()));
    }
    for bad in [
        "",
        "/*",
        "app:1",
        "app@sha256:00",
        "*.example/*",
        "reg.example/a*",
        " app",
    ] {
        assert!(check(bad).is_err(), "{bad:?}");
    }
}

fn credentials() -> impl Strategy<Value = Option<PullCredential>> {
    let one = ("[12]", "[ab]", "[xyz]").prop_map(|(uid, name, password)| credential(&uid, &name, &password));
    prop_oneof![9 => one.prop_map(Some), 1 => Just(None)]
}

proptest! {
    /// Whoever has access has shown the same content or the same object before, or everybody may.
    #[test]
    fn nobody_has_access_who_never_pulled(
        pulls in proptest::collection::vec(credentials(), 0..6),
        asks in credentials(),
    ) {
        let access = granted(&pulls.iter().map(Option::as_ref).collect::<Vec<_>>());
        prop_assert_eq!(access.node_pods_accessible, pulls.iter().any(Option::is_none));
        if let (Verdict::AskCredentials(access), Some(asks)) =
            (verdict(&ImageVerification::AlwaysVerify, NAME, REPOSITORY, &pulled(access)), asks)
        {
            let of_pod = std::slice::from_ref(&asks);
            let is_known = pulls.iter().flatten().any(|pull| pull.auth == asks.auth || pull.origin == asks.origin);
            prop_assert!(covering(&access, of_pod).is_none() || is_known);
            if pulls.last() == Some(&Some(asks.clone())) {
                prop_assert!(covering(&access, of_pod).is_some());
            }
        }
    }
}
