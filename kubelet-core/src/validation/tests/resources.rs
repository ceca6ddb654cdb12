use serde_json::{Value, json};

use super::{check_container, check_spec};

#[test]
fn names_and_amounts() {
    let limits = |limits: Value| json!({"resources": {"limits": limits, "requests": {}}});
    check_container([
        (
            limits(
                json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1", "a.kubernetes.io/b": "1", "x.io/gpu": "1"}),
            ),
            vec![],
        ),
        // The request that follows the limit repeats each error.
        (
            limits(json!({"cpu": "-1"})),
            vec![
                r#".resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
                r#".resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
            ],
        ),
        (
            limits(json!({"cpu": "x"})),
            vec![
                r#".resources.limits[cpu]: Invalid value: "x": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"#,
                r#".resources.requests[cpu]: Invalid value: "x": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"#,
            ],
        ),
        (
            json!({"resources": {"requests": {"pods": "1"}}}),
            vec![r#".resources.requests[pods]: Invalid value: "pods": must be a standard resource for containers"#],
        ),
        (
            json!({"resources": {"requests": {"x": "1"}}}),
            vec![
                r#".resources.requests[x]: Invalid value: "x": must be a standard resource type or fully qualified"#,
                r#".resources.requests[x]: Invalid value: "x": must be a standard resource for containers"#,
            ],
        ),
        (
            json!({"resources": {"requests": {"requests.x.io/a": "1"}}}),
            vec![
                r#".resources.requests[requests.x.io/a]: Invalid value: "requests.x.io/a": doesn't follow extended resource name standard"#,
            ],
        ),
        (
            json!({"resources": {"requests": {"/a": "1"}}}),
            vec![r#".resources.requests[/a]: Invalid value: "/a": prefix part must be non-empty"#],
        ),
        (
            json!({"resources": {"limits": {"x.io/gpu": "1500m"}, "requests": {"x.io/gpu": "1500m"}}}),
            vec![
                r#".resources.limits[x.io/gpu]: Invalid value: "1500m": must be an integer"#,
                r#".resources.requests[x.io/gpu]: Invalid value: "1500m": must be an integer"#,
            ],
        ),
    ]);
}

#[test]
fn requests_against_limits() {
    check_container([
        (
            json!({"resources": {"requests": {"x.io/gpu": "1"}}}),
            vec![".resources.limits: Required value: Limit must be set for non overcommitable resources"],
        ),
        (
            json!({"resources": {"limits": {"x.io/gpu": "2"}, "requests": {"x.io/gpu": "1"}}}),
            vec![r#".resources.requests: Invalid value: "1": must be equal to x.io/gpu limit of 2"#],
        ),
        (
            json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}}}),
            vec![r#".resources.requests: Invalid value: "1500m": must be less than or equal to cpu limit of 1"#],
        ),
        (
            json!({"resources": {"limits": {"hugepages-2Mi": "3Mi", "memory": "1"}}}),
            vec![
                r#".resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#,
            ],
        ),
        (
            json!({"resources": {"limits": {"hugepages-x": "1", "memory": "1"}}}),
            vec![
                r#".resources.limits[hugepages-x]: Invalid value: "1": 1 is not positive integer multiple of hugepages-x"#,
            ],
        ),
        (
            json!({"resources": {"limits": {"hugepages-2Mi": "0"}}}),
            vec![".resources: Forbidden: HugePages require cpu or memory"],
        ),
        (
            json!({"resources": {"claims": [{"name": "a"}]}}),
            vec![
                r#".resources.claims[0]: Not found: "a": must be one of the names in pod.spec.resourceClaims which is empty"#,
            ],
        ),
    ]);
    check_spec([(
        json!({
            "resourceClaims": [{"name": "a", "resourceClaimName": "x"}],
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "a"}, {"name": "a"}, {"name": "b"}]}}],
        }),
        vec![
            r#"spec.containers[0].resources.claims[1]: Duplicate value: "a""#,
            r#"spec.containers[0].resources.claims[2]: Not found: "b": must be one of the names in pod.spec.resourceClaims: a"#,
        ],
    )]);
}

#[test]
fn the_pods_own_resources() {
    let with = |own: Value, container: Value| json!({"resources": own, "containers": [{"name": "c", "image": "i", "resources": container}]});
    check_spec([
        (
            with(
                json!({"requests": {"x.io/gpu": "1"}, "claims": [{"name": "a"}]}),
                json!({}),
            ),
            vec![
                "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level",
                r#"spec.resources.requests[x.io/gpu]: Unsupported value: "x.io/gpu": supported values: "cpu", "hugepages-", "memory""#,
                "spec.resources.limits: Required value: Limit must be set for non overcommitable resources",
            ],
        ),
        (
            with(json!({"requests": {"cpu": "1"}}), json!({"requests": {"cpu": "2"}})),
            vec![
                r#"spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2"#,
            ],
        ),
        (
            with(
                json!({"limits": {"cpu": "1"}}),
                json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
            ),
            vec![
                r#"spec.resources.containers[0][cpu].limits: Invalid value: "2": must be less than or equal to pod limits of 1"#,
            ],
        ),
        (
            json!({"os": {"name": "windows"}, "resources": {"limits": {"cpu": "1"}}}),
            vec!["spec.resources: Forbidden: may not be set for a windows pod"],
        ),
        (
            json!({"overhead": {"cpu": "-1"}}),
            vec![r#"spec.overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#],
        ),
    ]);
    let pages = |amount: &str| json!({"limits": {"hugepages-2Mi": amount, "memory": "1Gi"}});
    check_spec([(
        json!({
            "resources": {"limits": {"hugepages-2Mi": "2Mi", "memory": "4Gi"}, "requests": {"hugepages-2Mi": "2Mi"}},
            "containers": [{"name": "c", "image": "i", "resources": pages("2Mi")}, {"name": "d", "image": "i", "resources": pages("2Mi")}],
        }),
        vec![
            r#"spec.resources.requests[hugepages-2Mi]: Invalid value: "2Mi": must be greater than or equal to aggregate container requests of 4Mi"#,
            r#"spec.resources.limits[hugepages-2Mi]: Invalid value: "2Mi": must be greater than or equal to aggregate container limits of 4Mi"#,
        ],
    )]);
}
