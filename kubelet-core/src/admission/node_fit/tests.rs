use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::NodeFit;
use crate::admission::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation};
use crate::ids::SourceName;
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::source::SourceKind;

fn node() -> NodeView {
    let mut node = NodeView::new("edge-7");
    node.operating_system = "linux".into();
    for (name, amount) in [("cpu", "2"), ("memory", "1Gi"), ("pods", "3"), ("example.com/gpu", "1")] {
        node.allocatable.insert(name.into(), amount.parse().unwrap());
    }
    for (key, value) in [("zone", "a"), ("cores", "8"), ("kubernetes.io/os", "linux")] {
        node.labels.insert(key.into(), value.into());
    }
    node.taints = serde_json::from_value(json!([
        {"key": "slow", "value": "very", "effect": "NoSchedule"},
    ]))
    .unwrap();
    node
}

fn pod(uid: &str, spec: Value) -> Arc<PodRecord> {
    let mut value = json!({"metadata": {"uid": uid}, "spec": {"containers": []}});
    for (key, field) in spec.as_object().unwrap() {
        value["spec"][key] = field.clone();
    }
    Arc::new(record(value))
}

fn asking(requests: Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
}

fn ask(fit: NodeFit, node: &NodeView, others: &ActivePods, pod: &Arc<PodRecord>) -> String {
    match fit.admit(&AdmitRequest::new(Operation::New, pod, others, node)) {
        Admission::Admit => String::new(),
        Admission::Reject { reason, message } => format!("{reason}: {message}"),
        Admission::NotYet { .. } => unreachable!("fit is final"),
    }
}

fn ask_alone(spec: Value) -> String {
    ask(NodeFit::default(), &node(), &ActivePods::new(), &pod("u", spec))
}

#[test]
fn a_shortage_names_the_first_resource_and_its_numbers() {
    let others: ActivePods = [pod(
        "other",
        asking(json!({"cpu": "1500m", "memory": "1023Mi", "unknown.io/x": 9})),
    )]
    .into_iter()
    .collect();
    let short = |text: &str| format!("OutOf{text}").replacen(" ", ": Node didn't have enough resource: ", 1);
    for (requests, expected) in [
        (json!({}), String::new()),
        (
            json!({"cpu": "500m", "memory": "1Mi", "example.com/gpu": 1}),
            String::new(),
        ),
        (
            json!({"cpu": "501m", "memory": "2Mi"}),
            short("cpu cpu, requested: 501, used: 1500, capacity: 2000"),
        ),
        (
            json!({"memory": "2Mi", "ephemeral-storage": "1Gi"}),
            short("memory memory, requested: 2097152, used: 1072693248, capacity: 1073741824"),
        ),
        (
            json!({"ephemeral-storage": "1Ki", "example.com/gpu": 2}),
            short("ephemeral-storage ephemeral-storage, requested: 1024, used: 0, capacity: 0"),
        ),
        (
            json!({"example.com/gpu": 2, "hugepages-2Mi": "2Mi"}),
            short("example.com/gpu example.com/gpu, requested: 2, used: 0, capacity: 1"),
        ),
        (
            json!({"hugepages-2Mi": "2Mi"}),
            short("hugepages-2Mi hugepages-2Mi, requested: 2097152, used: 0, capacity: 0"),
        ),
        (json!({"unknown.io/x": 100, "hugepages-2Mi": 0}), String::new()),
        (
            json!({"cpu": "1000000000000000m"}),
            short("cpu cpu, requested: 1000000000000000, used: 1500, capacity: 2000"),
        ),
    ] {
        let answer = ask(NodeFit::default(), &node(), &others, &pod("u", asking(requests)));
        assert_eq!(answer, expected);
    }
}

#[test]
fn a_pod_that_runs_has_its_room_but_must_be_on_the_right_node() {
    let ports = json!([{"containerPort": 80, "hostPort": 80}]);
    let others: ActivePods = ["a", "b", "c"]
        .map(|uid| pod(uid, json!({"containers": [{"name": "c", "ports": ports}]})))
        .into_iter()
        .collect();
    let answer = |operation, spec| {
        let pod = pod("u", spec);
        NodeFit::default().admit(&AdmitRequest::new(operation, &pod, &others, &node()))
    };
    let mut spec = asking(json!({"cpu": "5"}));
    spec["containers"][0]["ports"] = ports.clone();
    assert_ne!(answer(Operation::New, spec.clone()), Admission::Admit);
    assert_ne!(answer(Operation::Resize, spec.clone()), Admission::Admit);
    assert_eq!(answer(Operation::Restored, spec.clone()), Admission::Admit);
    spec["nodeName"] = json!("another");
    assert_ne!(answer(Operation::Restored, spec), Admission::Admit);
}

#[test]
fn the_number_of_pods_comes_first() {
    let others: ActivePods = ["a", "b", "c"].map(|uid| pod(uid, json!({}))).into_iter().collect();
    let answer = ask(
        NodeFit::default(),
        &node(),
        &others,
        &pod("u", asking(json!({"cpu": "9"}))),
    );
    assert_eq!(
        answer,
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
}

fn wanting(key: &str, operator: &str, values: &[&str]) -> Value {
    json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}])
}

#[test]
fn required_affinity_matches_as_the_scheduler_does() {
    let fields = |operator: &str, values: &[&str]| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]}]);
    for (terms, fits) in [
        (wanting("zone", "In", &["b", "a"]), true),
        (wanting("zone", "In", &["b"]), false),
        (wanting("none", "In", &[""]), false),
        (wanting("zone", "In", &[]), false),
        (wanting("zone", "NotIn", &["b"]), true),
        (wanting("zone", "NotIn", &["a"]), false),
        (wanting("none", "NotIn", &["a"]), true),
        (wanting("zone", "Exists", &[]), true),
        (wanting("none", "Exists", &[]), false),
        (wanting("zone", "Exists", &["a"]), false),
        (wanting("none", "DoesNotExist", &[]), true),
        (wanting("zone", "DoesNotExist", &[]), false),
        (wanting("cores", "Gt", &["7"]), true),
        (wanting("cores", "Gt", &["8"]), false),
        (wanting("cores", "Lt", &["9"]), true),
        (wanting("cores", "Lt", &["8"]), false),
        (wanting("cores", "Gt", &["x"]), false),
        (wanting("zone", "Gt", &["1"]), false),
        (wanting("none", "Lt", &["1"]), false),
        (wanting("zone", "Near", &["a"]), false),
        (fields("In", &["edge-7"]), true),
        (fields("In", &["edge-8"]), false),
        (fields("NotIn", &["edge-8"]), true),
        (fields("In", &["edge-7", "edge-8"]), false),
        (json!([]), false),
        (json!([{}]), false),
        (
            json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]),
            true,
        ),
        (
            json!([{
                "matchExpressions": [{"key": "zone", "operator": "Exists"}],
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["edge-8"]}],
            }]),
            false,
        ),
    ] {
        let answer = ask_alone(json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}}));
        let expected = match fits {
            true => "",
            false => "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        };
        assert_eq!(answer, expected, "{terms}");
    }
}

#[test]
fn the_node_must_be_the_one_asked_for() {
    let affinity = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let name = "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name";
    for (spec, expected) in [
        (json!({"nodeSelector": {"zone": "a", "cores": "8"}}), ""),
        (json!({"nodeSelector": {"zone": "b"}, "nodeName": "edge-8"}), affinity),
        (json!({"nodeName": "edge-8"}), name),
        (json!({"nodeName": "edge-7"}), ""),
        (json!({"nodeName": ""}), ""),
    ] {
        assert_eq!(ask_alone(spec), expected);
    }
}

#[test]
fn what_a_pod_costs_beside_its_containers_counts() {
    let spec = |overhead: &str| {
        let requests = json!({"requests": {"memory": "1Mi"}});
        json!({"overhead": {"memory": overhead}, "containers": [{"name": "c", "resources": requests}]})
    };
    assert_eq!(ask_alone(spec("1Mi")), "");
    let refused = ask_alone(spec("100Ti"));
    assert!(refused.starts_with("OutOfmemory: "), "{refused}");
}

#[test]
fn the_system_must_be_the_one_asked_for() {
    let labelled = Arc::new(record(
        json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}, "spec": {"os": {"name": "windows"}, "containers": []}}),
    ));
    assert_eq!(
        ask(NodeFit::default(), &node(), &ActivePods::new(), &labelled),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
    );
    assert_eq!(
        ask_alone(json!({"os": {"name": "windows"}})),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
    );
    assert_eq!(ask_alone(json!({"os": {"name": "linux"}})), "");
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    let mut node = node();
    let no = "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node";
    // Where it is not known, the runtime is asked later.
    for (known, answer) in [(None, ""), (Some(true), ""), (Some(false), no)] {
        node.supplemental_groups_policy = known;
        let pod = pod("u", strict.clone());
        assert_eq!(ask(NodeFit::default(), &node, &ActivePods::new(), &pod), answer);
    }
}

fn listening(ports: Value) -> Value {
    json!({"containers": [{"name": "c", "ports": ports}]})
}

#[test]
fn a_host_port_is_taken_once_per_protocol_and_address() {
    let taken: ActivePods = [
        pod("web", listening(json!([{"containerPort": 80, "hostPort": 8080}]))),
        pod(
            "dns",
            listening(json!([{"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}])),
        ),
        pod(
            "host",
            json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 9100}]}]}),
        ),
        pod(
            "init",
            json!({"initContainers": [
                {"name": "once", "ports": [{"containerPort": 1, "hostPort": 7000}]},
                {"name": "side", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 7001}]},
            ]}),
        ),
    ]
    .into_iter()
    .collect();
    let mut node = node();
    node.allocatable.insert("pods".into(), "9".parse().unwrap());
    let shared = NodeFit { shared_network: true };
    let at = |host: i32, protocol: &str, ip: &str| json!([{"containerPort": 5000, "hostPort": host, "protocol": protocol, "hostIP": ip}]);
    for (ports, own, on_shared) in [
        (at(8080, "TCP", ""), false, false),
        (at(8080, "TCP", "10.0.0.1"), false, false),
        (at(8080, "UDP", ""), true, true),
        (at(53, "UDP", "10.0.0.1"), false, false),
        (at(53, "UDP", "10.0.0.2"), true, true),
        (at(53, "UDP", "0.0.0.0"), false, false),
        (at(9100, "TCP", ""), false, false),
        (at(7000, "TCP", ""), true, true),
        (at(7001, "TCP", ""), false, false),
        (json!([{"containerPort": 80}]), true, false),
        (json!([{"containerPort": 81, "hostPort": 80}]), true, false),
        (json!([{"containerPort": 8080}]), true, false),
        (json!([{"containerPort": 82}]), true, true),
    ] {
        let pod = pod("u", listening(ports.clone()));
        for (fit, fits) in [(NodeFit::default(), own), (shared, on_shared)] {
            let expected = match fits {
                true => "",
                false => {
                    "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
                }
            };
            assert_eq!(ask(fit, &node, &taken, &pod), expected, "{ports} {fit:?}");
        }
    }
}

#[test]
fn only_taints_that_forbid_running_count_and_not_for_static_pods() {
    let mut node = node();
    node.taints.extend(serde_json::from_value(
        json!({"key": "k", "value": "v", "effect": "NoExecute"}),
    ));
    let refused = "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    for (tolerations, expected) in [
        (json!([]), refused),
        (json!([{"operator": "Exists"}]), ""),
        (json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), ""),
        (
            json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]),
            refused,
        ),
        (json!([{"key": "k", "value": "v"}]), ""),
        (json!([{"key": "k", "operator": "Equal", "value": "w"}]), refused),
        (json!([{"key": "j", "operator": "Exists"}]), refused),
        (json!([{"key": "k", "operator": "Gt", "value": "v"}]), refused),
    ] {
        let pod = pod("u", json!({"tolerations": tolerations}));
        assert_eq!(
            ask(NodeFit::default(), &node, &ActivePods::new(), &pod),
            expected,
            "{tolerations}"
        );
    }
    let fixed: Pod = serde_json::from_value(
        json!({"metadata": {"name": "p", "namespace": "d", "uid": "s"}, "spec": {"containers": []}}),
    )
    .unwrap();
    let fixed = Arc::new(PodRecord::new(&fixed, SourceName::from("file"), SourceKind::Static).unwrap());
    assert_eq!(ask(NodeFit::default(), &node, &ActivePods::new(), &fixed), "");
}
