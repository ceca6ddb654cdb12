//! Where an agent may be killed: tests stop it at each step in turn, and look at what it left.

/// A step of which everything before is done, and nothing after it. Tests end here; otherwise it is nothing.
#[cfg(not(test))]
#[inline]
pub(crate) fn step(_name: &'static str) {}

#[cfg(test)]
pub(crate) use walk::{is_to_be_killed, kill_at_each, panic_at_each, step};

#[cfg(test)]
mod walk {
    use std::cell::RefCell;
    use std::env;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use rustix::process::{Signal, getpid, kill_process};

    /// Tells the process that is to kill itself at which step.
    const KILL_AT: &str = "KUBELET_VOLUME_KILL_AT";

    /// And where it works.
    const PLACE: &str = "KUBELET_VOLUME_KILL_PLACE";

    /// Marks the panic that a test asked for.
    struct Stopped(&'static str);

    thread_local! {
        /// How many steps are left until this thread stops.
        static LEFT: RefCell<Option<u64>> = const { RefCell::new(None) };
    }

    /// Of all threads: the work of a manager is spread over many.
    static PASSED: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn step(name: &'static str) {
        let stops = LEFT.with_borrow_mut(|left| match left {
            Some(0) => left.take().is_some(),
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        });
        if stops {
            // Without the message of a panic: it is meant, and there are many.
            std::panic::resume_unwind(Box::new(Stopped(name)));
        }
        if let Some(at) = env::var(KILL_AT).ok().and_then(|text| text.parse::<u64>().ok())
            && PASSED.fetch_add(1, Ordering::SeqCst) == at
        {
            let _ = kill_process(getpid(), Signal::KILL);
            // Nothing more is done, whenever the signal comes.
            loop {
                thread::park();
            }
        }
    }

    /// Does the work again and again on this thread, each time stopped by a panic one step later, until it gets to its
    /// end; `check` sees what each left, with the name of the step. Tells the names.
    pub(crate) fn panic_at_each(mut work: impl FnMut(), mut check: impl FnMut(&str)) -> Vec<&'static str> {
        let mut names = Vec::new();
        for steps in 0.. {
            LEFT.set(Some(steps));
            let ended = catch_unwind(AssertUnwindSafe(&mut work));
            LEFT.set(None);
            match ended {
                Ok(()) => break,
                Err(panic) => match panic.downcast::<Stopped>() {
                    Ok(stopped) => {
                        check(stopped.0);
                        names.push(stopped.0);
                    }
                    Err(other) => std::panic::resume_unwind(other),
                },
            }
        }
        names
    }

    /// Whether this is the process that [`kill_at_each`] starts: what a test prepares is there.
    pub(crate) fn is_to_be_killed() -> bool {
        env::var_os(PLACE).is_some()
    }

    /// Does the work again and again in a process of its own, killed one step later each time, until it gets to its end.
    /// `test` is the full name of the test that calls this: the process runs it once more, and within it only `work`, in
    /// the same `place`.
    /// `check` sees what each left, with the number of the step. Tells how many steps there are; nothing within that process,
    /// which has nothing more to do.
    pub(crate) fn kill_at_each(
        test: &str,
        place: &Path,
        work: impl FnOnce(&Path),
        mut check: impl FnMut(u64),
    ) -> Option<u64> {
        if let Some(place) = env::var_os(PLACE) {
            work(Path::new(&place));
            return None;
        }
        for steps in 0.. {
            let status = Command::new(env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env(KILL_AT, steps.to_string())
                .env(PLACE, place)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .unwrap();
            match (status.code(), std::os::unix::process::ExitStatusExt::signal(&status)) {
                (Some(0), _) => return Some(steps),
                (_, Some(9)) => check(steps),
                _ => panic!("the work fails of its own at step {steps}: {status}"),
            }
        }
        unreachable!("it has an end")
    }

    #[test]
    fn each_step_is_stopped_at_once() {
        let (mut log, mut seen) = (Vec::new(), Vec::new());
        let names = panic_at_each(
            || {
                log.push("begun");
                step("first");
                step("second");
                log.push("ended");
            },
            |name| seen.push(name.to_owned()),
        );
        assert_eq!(names, ["first", "second"]);
        assert_eq!(seen, names);
        assert_eq!(log, ["begun", "begun", "begun", "ended"]);
        // Outside of such a walk it does nothing.
        step("third");
    }

    #[test]
    fn each_step_is_killed_at() {
        let mut killed = Vec::new();
        let test = "ground::crash::walk::each_step_is_killed_at";
        let work = |place: &Path| {
            assert_eq!(place, Path::new("/place"));
            step("first");
            step("second");
        };
        if let Some(steps) = kill_at_each(test, Path::new("/place"), work, |step| killed.push(step)) {
            assert_eq!((steps, killed), (2, vec![0, 1]));
        }
    }
}
