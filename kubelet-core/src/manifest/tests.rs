use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

use super::{Decoded, MAX_MANIFEST_BYTES, ManifestKind, decode_pod, decode_pods, manifest_kind};

const POD: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web}
spec:
  # a comment
  containers:
  - name: nginx
    image: nginx:1.27
    env:
    - name: PORT
      value: "80"
    ports:
    - containerPort: 80
      hostPort: 8080
    resources:
      limits:
        cpu: 1
        memory: 128Mi
"#;

const JSON: &str = r#"{
  "apiVersion": "v1",
  "kind": "Pod",
  "metadata": {"name": "web", "labels": {"app": "web"}},
  "spec": {
    "containers": [
      {"name": "nginx", "image": "nginx:1.27",
       "ports": [{"containerPort": 80,
                  "hostPort": 8080}],
       "command": ["\ud83d\ude00\/x"]}
    ]
  }
}"#;

/// A pod around the fields of its spec.
fn pod(spec: &str) -> String {
    let mut text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n".to_owned();
    for line in spec.lines() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn decode(text: &str) -> Decoded {
    decode_pod(text.as_bytes()).unwrap_or_else(|err| panic!("{err}\n{text}"))
}

fn refusal(text: &str) -> String {
    decode_pod(text.as_bytes()).expect_err(text).to_string()
}

#[test]
fn a_pod_is_read_from_yaml_and_json() {
    for (text, command) in [(POD, None), (JSON, Some(vec!["😀/x".to_owned()]))] {
        let decoded = decode(text);
        assert_eq!(decoded.unknown_fields, []);
        assert_eq!(decoded.pod.metadata.name.as_deref(), Some("web"));
        assert_eq!(decoded.pod.metadata.labels.unwrap()["app"], "web");
        let container = &decoded.pod.spec.unwrap().containers[0];
        assert_eq!(container.image.as_deref(), Some("nginx:1.27"));
        assert_eq!(container.ports.as_ref().unwrap()[0].host_port, Some(8080));
        assert_eq!(container.command, command);
    }
}

#[test]
fn a_field_path_leads_to_its_line() {
    for (text, path, line) in [
        (POD, "", 1),
        (POD, "metadata.name", 4),
        (POD, "metadata.labels[app]", 5),
        (POD, "spec.containers", 8),
        (POD, "spec.containers[0]", 9),
        (POD, "spec.containers[0].ports[0].hostPort", 16),
        (POD, "spec.containers[0].resources.limits[memory]", 20),
        // Not in the text: the nearest parent.
        (POD, "spec.containers[0].ports[0].protocol", 15),
        (POD, "spec.containers[3].image", 8),
        (POD, "spec.containers[x]", 8),
        (POD, "status.phase", 1),
        (JSON, "spec.containers[0].ports[0].hostPort", 9),
        (JSON, "spec.containers[0].command[0]", 10),
        (JSON, "spec.nodeName", 5),
    ] {
        assert_eq!(decode(text).locator.line_of(path), Some(line), "{path}");
    }
}

#[test]
fn unknown_fields_are_named_and_ignored() {
    let text = pod("containers:\n- name: a\n  imagePulPolicy: Always\n  Image: x\nhostIpc: {a: 1}\n") + "spce: null\n";
    let decoded = decode(&text);
    let seen: Vec<_> = decoded
        .unknown_fields
        .iter()
        .map(|field| (field.path.as_str(), field.line))
        .collect();
    assert_eq!(
        seen,
        [
            ("spec.containers[0].imagePulPolicy", Some(7)),
            ("spec.containers[0].Image", Some(8)),
            ("spec.hostIpc", Some(9)),
            ("spce", Some(10)),
        ]
    );
    assert_eq!(decoded.pod.spec.unwrap().containers[0].image, None);
}

#[test]
fn yaml_1_1_values_reach_their_types() {
    let decoded = decode(&pod(
        "hostNetwork: yes\nenableServiceLinks: off\nterminationGracePeriodSeconds: 5.0\nhostIPC: null\nnodeSelector: {yes: a, 1: b, c: null}\n\
         volumes:\n- name: v\n  configMap: {defaultMode: 0644}\n\
         containers:\n- &base\n  name: a\n  resources: {limits: {cpu: 0.5, memory: 1_000}}\n  livenessProbe: {tcpSocket: {port: 80}}\n\
         - <<: *base\n  name: b\n  livenessProbe: {tcpSocket: {port: \"80\"}}\n-\n",
    ));
    let spec = decoded.pod.spec.unwrap();
    assert_eq!(decoded.unknown_fields, []);
    assert_eq!(
        (spec.host_network, spec.enable_service_links, spec.host_ipc),
        (Some(true), Some(false), None)
    );
    assert_eq!(spec.termination_grace_period_seconds, Some(5));
    assert_eq!(
        spec.volumes.unwrap()[0].config_map.as_ref().unwrap().default_mode,
        Some(420)
    );
    let selector: Vec<_> = spec.node_selector.unwrap().into_iter().collect();
    assert_eq!(
        selector,
        [("1", "b"), ("c", ""), ("true", "a")].map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
    let port = |index: usize| {
        spec.containers[index]
            .liveness_probe
            .as_ref()
            .unwrap()
            .tcp_socket
            .as_ref()
            .unwrap()
            .port
            .clone()
    };
    assert_eq!(port(0), IntOrString::Int(80));
    assert_eq!(port(1), IntOrString::String("80".to_owned()));
    let limits = spec.containers[1].resources.as_ref().unwrap().limits.as_ref().unwrap();
    assert_eq!((limits["cpu"].0.as_str(), limits["memory"].0.as_str()), ("0.5", "1000"));
    assert_eq!(spec.containers[1].name, "b");
    assert_eq!(spec.containers[2].name, "");
}

#[test]
fn only_the_first_document_counts() {
    decode(&format!("---\n{POD}---\n}}{{ not yaml\n"));
    decode(&format!("\u{feff}{POD}...\n"));
    decode(&format!("# first\n---\n{POD}"));
    assert_eq!(
        refusal(&format!("---\n---\n{POD}")),
        "line 1, column 4: Object 'Kind' is missing in 'null'"
    );
}

#[test]
fn refusals_name_line_field_and_value() {
    for (text, want) in [
        ("", "line 1, column 1: Object 'Kind' is missing in 'null'"),
        (
            "apiVersion: v1\n",
            r#"line 1, column 1: Object 'Kind' is missing in '{"apiVersion":"v1"}'"#,
        ),
        (
            "kind: Pod\n",
            r#"line 1, column 1: Object 'apiVersion' is missing in '{"kind":"Pod"}'"#,
        ),
        (
            "kind: pod\napiVersion: v1\n",
            r#"line 1, column 7: kind: no kind "pod" is registered for version "v1""#,
        ),
        (
            "kind: Pod\napiVersion: v2\n",
            r#"line 1, column 7: kind: no kind "Pod" is registered for version "v2""#,
        ),
        (
            "kind: PodList\napiVersion: v1\n",
            "line 1, column 1: invalid pod: this is a v1 PodList, not a Pod",
        ),
        ("kind: 5\n", "line 1, column 7: kind: invalid type: expected a string"),
        (
            "a: 1\nb: 2\na: 3\n",
            r#"line 3, column 1: key "a" is already set on line 1"#,
        ),
        (
            r#"{"a": 1, "a": 2}"#,
            r#"line 1, column 10: key "a" is already set on line 1"#,
        ),
        (
            r#"{"a": 1,}"#,
            "line 1, column 9: expected a key in double quotes, found '}'",
        ),
        (
            "{\"a\": 1\n} x",
            "line 2, column 3: expected the end of the text, found 'x'",
        ),
        ("{\"ä\": 01}", "line 1, column 7: invalid number"),
        (r#"{"a": "\x"}"#, "line 1, column 7: invalid escape"),
        (
            "{kind: Pod}",
            "line 1, column 2: expected a key in double quotes, found 'k'",
        ),
        ("a: [1, 2\n---\n", "line 1, column 4: "),
        ("a: 1\n\tb: 2\n", "line 1, column 4: "),
        ("a: *nope\n", "line 1, column 4: "),
        (
            "[a]: 1\n",
            "line 1, column 1: a mapping key must be a string, a number or a boolean",
        ),
        (
            "<<: 5\n",
            "line 1, column 5: a merge key takes a mapping or a sequence of mappings",
        ),
        ("a: !!int x\n", r#"line 1, column 10: "x" is no integer"#),
    ] {
        let got = refusal(text);
        // What the parser says about syntax is its own affair, the place is not.
        let same = if want.ends_with(": ") {
            got.starts_with(want)
        } else {
            got == want
        };
        assert!(same, "{text:?}\n got {got}\nwant {want}");
    }
}

#[test]
fn values_of_a_wrong_type_are_refused_at_their_path() {
    for (spec, want) in [
        (
            "containers:\n- ports:\n  - containerPort: x",
            "line 7, column 22: spec.containers[0].ports[0].containerPort: invalid type: string \"x\", expected i32",
        ),
        (
            "containers:\n- env:\n  - {name: A, value: 80}",
            "line 7, column 24: spec.containers[0].env[0].value: invalid type: integer `80`, expected a string",
        ),
        (
            "nodeSelector: {a/b: true}",
            "line 5, column 23: spec.nodeSelector[a/b]: invalid type: boolean `true`, expected a string",
        ),
        (
            "containers: [{command: [sleep, 5]}]",
            "line 5, column 34: spec.containers[0].command[1]: invalid type: integer `5`, expected a string",
        ),
        (
            "containers: {}",
            "line 5, column 15: spec.containers: invalid type: map, expected a sequence",
        ),
        (
            "hostNetwork: \"true\"",
            "line 5, column 16: spec.hostNetwork: invalid type: string \"true\", expected a boolean",
        ),
        (
            "priority: 1.5",
            "line 5, column 13: spec.priority: invalid type: floating point `1.5`, expected i32",
        ),
        (
            "priority: 3000000000",
            "line 5, column 13: spec.priority: invalid value: integer `3000000000`, expected i32",
        ),
        (
            "securityContext: x",
            "line 5, column 20: spec.securityContext: invalid type: string \"x\", expected PodSecurityContext",
        ),
    ] {
        assert_eq!(refusal(&pod(spec)), want);
    }
    let err = decode_pod(pod("priority: \"7\"").as_bytes()).unwrap_err();
    assert_eq!(
        (err.line(), err.column(), err.path(), err.value()),
        (Some(5), Some(13), Some("spec.priority"), Some("7"))
    );
    // Only YAML takes a whole number with a decimal point for an integer.
    let err = decode_pod(br#"{"apiVersion":"v1","kind":"Pod","spec":{"priority":5.0}}"#).unwrap_err();
    assert_eq!(err.path(), Some("spec.priority"));
}

#[test]
fn a_list_gives_its_pods_with_their_own_lines() {
    let text = "kind: PodList\napiVersion: v1\nitems:\n- metadata: {name: a}\n- metadata:\n    name: b\n  spec:\n    typo: 1\n";
    assert_eq!(manifest_kind(text.as_bytes()).unwrap(), ManifestKind::PodList);
    assert_eq!(manifest_kind(POD.as_bytes()).unwrap(), ManifestKind::Pod);
    let pods = decode_pods(text.as_bytes()).unwrap();
    assert_eq!(pods.len(), 2);
    assert_eq!(pods[1].pod.metadata.name.as_deref(), Some("b"));
    assert_eq!(pods[1].unknown_fields[0].path, "items[1].spec.typo");
    assert_eq!(pods[1].unknown_fields[0].line, Some(8));
    assert_eq!(pods[0].locator.line_of("metadata.name"), Some(4));
    assert_eq!(pods[1].locator.line_of("metadata.name"), Some(6));
    assert_eq!(pods[1].locator.line_of("spec.containers[0]"), Some(7));
    assert_eq!(decode_pods(POD.as_bytes()).unwrap().len(), 1);
    assert!(decode_pods(b"kind: PodList\napiVersion: v1\n").unwrap().is_empty());
    let err = decode_pods(b"kind: PodList\napiVersion: v1\nitems: [{spec: {priority: x}}]\n").unwrap_err();
    assert_eq!(err.path(), Some("items[0].spec.priority"));
    let err = decode_pods(b"kind: List\napiVersion: v1\nitems: []\n").unwrap_err();
    assert!(err.message().starts_with("no kind \"List\""), "{err}");
}

#[test]
fn size_nesting_and_aliases_are_bounded() {
    let err = decode_pod(&vec![b' '; MAX_MANIFEST_BYTES]).unwrap_err();
    assert_eq!(err.message(), "the manifest has 10485760 bytes, the limit is 10485759");

    let mut laughs = "apiVersion: v1\nkind: Pod\nx0: &x0 {labels: {a: b}}\n".to_owned();
    for level in 1..40 {
        let _ = writeln!(
            laughs,
            "x{level}: &x{level} [{}]",
            vec![format!("*x{}", level - 1); 10].join(",")
        );
    }
    // Nothing walks what no field asks for.
    assert_eq!(decode(&laughs).unknown_fields.len(), 40);
    assert!(refusal(&laughs.replace("kind", "kin")).len() < 1000);

    let mut wide = "apiVersion: v1\nkind: Pod\nx: &x [a,a,a,a,a,a,a,a,a,a]\n".to_owned();
    let _ = writeln!(wide, "y: &y {{command: [{}]}}", "a,".repeat(2000));
    let _ = writeln!(wide, "spec: {{containers: [{}]}}", "*y,".repeat(2000));
    assert!(refusal(&wide).contains("aliases make the manifest too large"));

    for deep in [
        "[".repeat(100_000),
        "- ".repeat(100_000),
        "{\"a\":".repeat(100_000),
        "a: {".repeat(100_000),
    ] {
        decode_pod(deep.as_bytes()).unwrap_err();
    }
    let mut chain = "a0: &a0 []\n".to_owned();
    for level in 1..1000 {
        let _ = writeln!(chain, "a{level}: &a{level} [*a{}]", level - 1);
    }
    assert!(refusal(&chain).contains("nested more than 100 levels"));
    assert!(refusal("a: &a [*a]\n").contains("line 1, column 8"));
}

#[test]
fn text_that_is_not_utf8_is_refused_at_its_line() {
    let err = decode_pod(b"kind: Pod\nname: \xff\n").unwrap_err();
    assert_eq!(err.to_string(), "line 2: the manifest is not UTF-8 text");
}

#[test]
fn a_half_written_manifest_never_panics() {
    for text in [POD, JSON] {
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            let _ = decode_pods(&text.as_bytes()[..end]);
        }
    }
    for end in 0..JSON.len() {
        decode_pod(&JSON.as_bytes()[..end]).unwrap_err();
    }
}

/// Pieces that make YAML awkward.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(
            &[
                "- ",
                "? ",
                ": ",
                "&a ",
                "*a",
                "<<: *a",
                "{",
                "}",
                "[",
                "]",
                "\"",
                "'",
                "|\n",
                ">-\n",
                "\n",
                "  ",
                "\t",
                "#",
                "---\n",
                "...\n",
                "%YAML 1.1\n",
                "!!str ",
                "!x ",
                "\u{feff}",
                "\r\n",
                "\\",
                ",",
                "null",
                "0x",
                "é",
                "kind: Pod\n",
                "spec:\n",
            ][..]
        )
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_pods(&text);
    }

    #[test]
    fn awkward_text_never_panics(start in prop_oneof![Just(""), Just("{"), Just(POD)], pieces in prop::collection::vec(piece(), 0..40)) {
        let _ = decode_pods((start.to_owned() + &pieces.concat()).as_bytes());
    }

    #[test]
    fn a_mutated_manifest_never_panics(json in any::<bool>(), at in any::<prop::sample::Index>(), cut in 0_usize..12, put in piece()) {
        let text = if json { JSON } else { POD };
        let start = at.index(text.len());
        let mut bytes = text.as_bytes().to_vec();
        bytes.splice(start..(start + cut).min(text.len()), put.bytes());
        if let Ok(pods) = decode_pods(&bytes) {
            for decoded in pods {
                decoded.locator.line_of("spec.containers[0].ports[0].hostPort").unwrap();
            }
        }
    }
}
