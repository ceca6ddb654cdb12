//! Checks that need a proxy in their environment.

use std::env;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Command;

use crate::contract::check::check;

/// Set in the process whose environment names a proxy.
const INSIDE: &str = "KUBELET_TESTING_BEHIND_PROXY";

/// Checks a promise that no proxy is used, whose test has the full name `test`, in a process of its own whose environment names one.
/// Environments cannot be changed safely while other tests run.
///
/// # Panics
/// If the promise is broken.
pub fn check_without_proxy<T, F>(
    test: &str,
    make: impl AsyncFnOnce() -> Option<(T, F)>,
    promise: impl AsyncFnOnce(&T, &F),
) {
    if env::var_os(INSIDE).is_some() {
        return check(test, make, promise);
    }
    // The name of the crate is no part of the name of a test.
    let name = test.split_once("::").map_or(test, |(_, name)| name);
    let proxy = TcpListener::bind("127.0.0.1:0");
    let run = proxy.and_then(|proxy| {
        proxy.set_nonblocking(true)?;
        let url = format!("http://{}", proxy.local_addr()?);
        let mut command = Command::new(env::current_exe()?);
        command.args([name, "--exact", "--nocapture"]).env(INSIDE, "1");
        for variable in [
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
        ] {
            command.env(variable, &url);
        }
        command.env_remove("no_proxy").env_remove("NO_PROXY");
        let output = command.output()?;
        Ok((output, proxy.accept().map(drop)))
    });
    match run {
        Ok((output, asked)) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            let unasked = asked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            assert!(unasked, "a proxy that the environment names was asked: {text}");
            let passed = output.status.success() && text.contains("1 passed");
            assert!(passed, "with a proxy in the environment: {text}");
        }
        Err(error) => panic!("run this test with a proxy in its environment: {error}"),
    }
}
