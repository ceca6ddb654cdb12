use super::NameKind;

/// Kind, names that pass, names that fail with the end of their texts.
fn check(kind: NameKind, good: &[&str], bad: &[(&str, &[&str])]) {
    for name in good {
        assert_eq!(kind.faults(name), [""; 0], "{kind:?} {name:?}");
    }
    for (name, ends) in bad {
        let faults = kind.faults(name);
        assert_eq!(faults.len(), ends.len(), "{kind:?} {name:?}: {faults:?}");
        for (fault, end) in faults.iter().zip(*ends) {
            assert!(fault.ends_with(end), "{kind:?} {name:?}: {fault}");
        }
    }
}

const LABEL: &str = "(e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = r"(e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

#[test]
fn dns_names_follow_rfc_1123() {
    let (a63, a64) = ("a".repeat(63), "a".repeat(64));
    check(
        NameKind::Label,
        &["a", "0-a", &a63],
        &[
            ("", &[LABEL]),
            ("a\n", &[LABEL]),
            ("A", &[LABEL]),
            ("-a", &[LABEL]),
            ("a-", &[LABEL]),
            ("a.b", &["must not contain dots"]),
            (&a64, &["must be no more than 63 characters"]),
        ],
    );
    let a254 = "a".repeat(254);
    check(
        NameKind::Subdomain,
        &["a", "a.b-c.0", &a64],
        &[
            ("a..b", &[SUBDOMAIN]),
            (".a", &[SUBDOMAIN]),
            ("a_b", &[SUBDOMAIN]),
            (&a254, &["must be no more than 253 characters"]),
        ],
    );
    let tail = "')";
    check(
        NameKind::UnderscoreSubdomain,
        &["_a._b_c.d"],
        &[("__a", &[tail]), ("a_", &[tail]), ("", &[tail])],
    );
}

#[test]
fn qualified_names_have_one_optional_prefix() {
    let long = format!("a/{}", "a".repeat(64));
    let far = format!("{}/a", "a".repeat(254));
    check(
        NameKind::Qualified,
        &["a", "A_b.c", "example.com/Name"],
        &[
            ("", &["name part must be non-empty", QUALIFIED]),
            ("/a", &["prefix part must be non-empty"]),
            ("a/", &["name part must be non-empty", QUALIFIED]),
            ("A/a", &[SUBDOMAIN]),
            ("a/b/c", &[QUALIFIED]),
            ("-a", &[QUALIFIED]),
            (&long, &["name part must be no more than 63 bytes"]),
            (&far, &["prefix part must be no more than 253 characters"]),
        ],
    );
    check(NameKind::AnnotationKey, &["Example.COM/a"], &[("a b", &[QUALIFIED])]);
    let a64 = "a".repeat(64);
    check(
        NameKind::LabelValue,
        &["", "a", "A.b_c-0"],
        &[
            ("a/b", &["')"]),
            ("_", &["')"]),
            (&a64, &["must be no more than 63 bytes"]),
        ],
    );
}

#[test]
fn keys_ports_and_the_rest_have_their_own_rules() {
    check(
        NameKind::EnvVar,
        &["A", "1 a-b.c"],
        &[("", &["'='"]), ("a=b", &["'='"]), ("é", &["'='"])],
    );
    check(
        NameKind::ConfigMapKey,
        &["a", ".a", "a..b"],
        &[
            ("", &["')"]),
            ("a/b", &["')"]),
            (".", &["must not be '.'"]),
            ("..", &["must not be '..'"]),
            ("..a", &["must not start with '..'"]),
        ],
    );
    check(
        NameKind::Port,
        &["http", "a-1"],
        &[
            ("80", &["must contain at least one letter (a-z)"]),
            ("-a", &["must not begin or end with a hyphen"]),
            ("a--b", &["must not contain consecutive hyphens"]),
            (
                "Aa",
                &["must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"],
            ),
            ("abcdefghijklmnop", &["must be no more than 15 characters"]),
            ("", &["hyphens (-)", "one letter (a-z)"]),
        ],
    );
    check(
        NameKind::Sysctl,
        &["net.ipv4.ip_forward", "net/ipv4/a.b"],
        &[(
            "net..a",
            &[
                r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ],
        )],
    );
    check(NameKind::HttpHeader, &["X-A"], &[("a:b", &["'[-A-Za-z0-9]+')"])]);
    check(
        NameKind::Signer,
        &["a.b/c", "a.b/c.d"],
        &[("a/c", &[""]), ("a.b", &[""]), ("a.b/C", &[""])],
    );
}

#[test]
fn addresses_are_strict() {
    check(
        NameKind::Ip,
        &["10.0.0.1", "::1", "2001:DB8:0:0::1", "0.0.0.0"],
        &[
            ("010.0.0.1", &["must not have leading 0s"]),
            ("::ffff:1.2.3.4", &["must not be an IPv4-mapped IPv6 address"]),
            (
                "fe80::1%eth0",
                &["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"],
            ),
            ("", &["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]),
            (
                "1.2.3",
                &["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"],
            ),
        ],
    );
}
