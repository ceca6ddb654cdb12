//! Probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, PodSpec, Probe, SleepAction,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::check::{name, not_negative, one_of, range, required};
use super::field::{FieldErrors, FieldPath};
use super::names::NameKind;

/// Signals a Linux container may be stopped with, besides the real-time ones.
const SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

pub(super) fn check_probes(container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    for (field, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let Some(probe) = probe else { continue };
        let path = path.child(field);
        check_probe(probe, &path, errors);
        let readiness = field == "readinessProbe";
        let successes = probe.success_threshold.unwrap_or_default();
        if readiness && probe.termination_grace_period_seconds.is_some() {
            errors.invalid(
                path.child("terminationGracePeriodSeconds"),
                probe.termination_grace_period_seconds.unwrap_or_default(),
                "must not be set for readinessProbes",
            );
        }
        if !readiness && successes != 1 {
            errors.invalid(path.child("successThreshold"), successes, "must be 1");
        }
    }
}

fn check_probe(probe: &Probe, path: &FieldPath, errors: &mut FieldErrors) {
    let mut handlers = Handlers::new(path, errors);
    handlers.exec(probe.exec.as_ref());
    handlers.http(probe.http_get.as_ref());
    handlers.tcp(probe.tcp_socket.as_ref());
    handlers.grpc(probe.grpc.as_ref());
    handlers.finish();
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        not_negative(path.child(field), i64::from(value.unwrap_or_default()), errors);
    }
    if let Some(grace) = probe.termination_grace_period_seconds.filter(|grace| *grace <= 0) {
        let path = path.child("terminationGracePeriodSeconds");
        errors.invalid(path, grace, "must be greater than 0");
    }
}

pub(super) fn check_lifecycle(
    spec: &PodSpec,
    lifecycle: Option<&Lifecycle>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    let Some(lifecycle) = lifecycle else { return };
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(hook) = hook {
            check_hook(hook, grace, &path.child(field), errors);
        }
    }
    if let Some(signal) = &lifecycle.stop_signal {
        check_signal(spec, signal, path.child("stopSignal"), errors);
    }
}

fn check_hook(hook: &LifecycleHandler, grace: i64, path: &FieldPath, errors: &mut FieldErrors) {
    let mut handlers = Handlers::new(path, errors);
    handlers.exec(hook.exec.as_ref());
    handlers.http(hook.http_get.as_ref());
    handlers.tcp(hook.tcp_socket.as_ref());
    handlers.sleep(hook.sleep.as_ref(), grace);
    handlers.finish();
}

fn check_signal(spec: &PodSpec, signal: &str, path: FieldPath, errors: &mut FieldErrors) {
    let mut known: Vec<String> = SIGNALS.map(str::to_owned).to_vec();
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None | Some("") => {
            let detail = "may not be set for containers with empty `spec.os.name`";
            return errors.forbidden(path, detail);
        }
        Some("windows") => known = ["SIGKILL", "SIGTERM"].map(str::to_owned).to_vec(),
        Some(_) => {
            known.extend(["SIGRTMIN".to_owned(), "SIGRTMAX".to_owned()]);
            known.extend((1..=15).map(|n| format!("SIGRTMIN+{n}")));
            known.extend((1..=14).map(|n| format!("SIGRTMAX-{n}")));
        }
    }
    known.sort();
    if !known.iter().any(|name| name == signal) {
        let known: Vec<_> = known.iter().map(String::as_str).collect();
        errors.not_supported(path, signal, &known);
    }
}

/// Checks handlers one after the other: the first is checked, each later one is one too many.
struct Handlers<'a> {
    path: &'a FieldPath,
    errors: &'a mut FieldErrors,
    found: bool,
}

impl<'a> Handlers<'a> {
    fn new(path: &'a FieldPath, errors: &'a mut FieldErrors) -> Self {
        Self {
            path,
            errors,
            found: false,
        }
    }

    fn exec(&mut self, exec: Option<&ExecAction>) {
        if let Some((path, exec)) = self.next("exec", exec)
            && exec.command.as_ref().is_none_or(Vec::is_empty)
        {
            self.errors.required(path.child("command"), "");
        }
    }

    fn http(&mut self, http: Option<&HTTPGetAction>) {
        let Some((path, http)) = self.next("httpGet", http) else {
            return;
        };
        required(
            path.child("path"),
            http.path.as_deref().unwrap_or_default(),
            self.errors,
        );
        check_port(&http.port, &path.child("port"), self.errors);
        one_of(
            path.child("scheme"),
            http.scheme.as_deref(),
            &["HTTP", "HTTPS"],
            self.errors,
        );
        for header in http.http_headers.iter().flatten() {
            name(
                &path.child("httpHeaders"),
                &header.name,
                NameKind::HttpHeader,
                self.errors,
            );
        }
    }

    fn tcp(&mut self, tcp: Option<&TCPSocketAction>) {
        if let Some((path, tcp)) = self.next("tcpSocket", tcp) {
            check_port(&tcp.port, &path.child("port"), self.errors);
        }
    }

    fn grpc(&mut self, grpc: Option<&GRPCAction>) {
        if let Some((path, grpc)) = self.next("grpc", grpc) {
            range(path.child("port"), i64::from(grpc.port), 1, 65_535, self.errors);
        }
    }

    fn sleep(&mut self, sleep: Option<&SleepAction>, grace: i64) {
        if let Some((path, sleep)) = self.next("sleep", sleep)
            && !(0..=grace).contains(&sleep.seconds)
        {
            let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
            self.errors.invalid(path, sleep.seconds, detail);
        }
    }

    fn finish(self) {
        if !self.found {
            let detail = "must specify a handler type";
            self.errors.required(self.path.clone(), detail);
        }
    }

    fn next<T>(&mut self, field: &'static str, handler: Option<T>) -> Option<(FieldPath, T)> {
        let handler = handler?;
        let path = self.path.child(field);
        if self.found {
            let detail = "may not specify more than 1 handler type";
            self.errors.forbidden(path, detail);
            return None;
        }
        self.found = true;
        Some((path, handler))
    }
}

fn check_port(port: &IntOrString, path: &FieldPath, errors: &mut FieldErrors) {
    match port {
        IntOrString::Int(number) => range(path.clone(), i64::from(*number), 1, 65_535, errors),
        IntOrString::String(text) => name(path, text, NameKind::Port, errors),
    }
}
