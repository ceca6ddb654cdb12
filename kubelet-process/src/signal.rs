//! Names of signals, as pods and images give them.

/// The number of a signal such as `SIGTERM`, `TERM`, `15` or `SIGRTMIN+3`; nothing if there is none of that name.
pub(crate) fn number(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Ok(number) = bare.parse::<i32>() {
        return (1..=libc::SIGRTMAX()).contains(&number).then_some(number);
    }
    if let Some(rest) = bare.strip_prefix("RTMIN") {
        return real_time(libc::SIGRTMIN(), rest, '+');
    }
    if let Some(rest) = bare.strip_prefix("RTMAX") {
        return real_time(libc::SIGRTMAX(), rest, '-');
    }
    NAMES
        .iter()
        .find(|(known, _)| *known == bare)
        .map(|(_, number)| *number)
}

const NAMES: &[(&str, i32)] = &[
    ("ABRT", libc::SIGABRT),
    ("ALRM", libc::SIGALRM),
    ("BUS", libc::SIGBUS),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("FPE", libc::SIGFPE),
    ("HUP", libc::SIGHUP),
    ("ILL", libc::SIGILL),
    ("INT", libc::SIGINT),
    ("IO", libc::SIGIO),
    ("IOT", libc::SIGIOT),
    ("KILL", libc::SIGKILL),
    ("PIPE", libc::SIGPIPE),
    ("POLL", libc::SIGPOLL),
    ("PROF", libc::SIGPROF),
    ("PWR", libc::SIGPWR),
    ("QUIT", libc::SIGQUIT),
    ("SEGV", libc::SIGSEGV),
    ("STOP", libc::SIGSTOP),
    ("SYS", libc::SIGSYS),
    ("TERM", libc::SIGTERM),
    ("TRAP", libc::SIGTRAP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("VTALRM", libc::SIGVTALRM),
    ("WINCH", libc::SIGWINCH),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
];

fn real_time(base: i32, rest: &str, sign: char) -> Option<i32> {
    let offset = match rest.strip_prefix(sign) {
        Some(digits) => digits.parse::<u8>().ok()?,
        None if rest.is_empty() => 0,
        None => return None,
    };
    let number = if sign == '+' {
        base + i32::from(offset)
    } else {
        base - i32::from(offset)
    };
    (libc::SIGRTMIN()..=libc::SIGRTMAX())
        .contains(&number)
        .then_some(number)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn signals_have_their_kubernetes_names() {
        for (name, expected) in [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("SIGKILL", Some(9)),
            ("10", Some(10)),
            ("SIGRTMIN", Some(libc::SIGRTMIN())),
            ("SIGRTMIN+3", Some(libc::SIGRTMIN() + 3)),
            ("SIGRTMAX-1", Some(libc::SIGRTMAX() - 1)),
            ("SIGRTMIN+200", None),
            ("SIGRTMIN-1", None),
            ("0", None),
            ("-9", None),
            ("99", None),
            ("SIGNOTHING", None),
            ("", None),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
    }
}
