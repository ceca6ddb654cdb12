//! The scenarios that any kubelet can be measured with run against the agent, at sizes at which the figures mean nothing.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_benches::SideBySide;

#[test]
fn the_agent_goes_through_all_scenarios() {
    let agent = env!("CARGO_BIN_EXE_node-agent");
    let words = "--plain --runtime cri --endpoint {endpoint} --root-dir {dir}/root --cgroups-per-qos=false {manifests}";
    let mut command = vec![agent.to_owned()];
    command.extend(words.split(' ').map(str::to_owned));
    let mut settings = SideBySide::of(command);
    settings.pods = 5;
    settings.samples = 2;
    settings.rest = Duration::from_millis(10);
    settings.settle = Duration::ZERO;
    let mut rows = Vec::new();
    settings.run(|row| rows.push(row.to_string())).unwrap();
    assert_eq!(rows.len(), 7, "{rows:?}");
}

#[test]
fn a_kubelet_that_ends_is_an_error_with_what_it_said() {
    let command = ["sh", "-c", "echo no such socket: {endpoint}; exit 3"].map(str::to_owned);
    let mut settings = SideBySide::of(command.to_vec());
    settings.settle = Duration::ZERO;
    let error = settings.run(|_| {}).unwrap_err().to_string();
    assert!(
        error.contains("exit status: 3") && error.contains("no such socket: unix:///"),
        "{error}"
    );
}
