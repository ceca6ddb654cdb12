//! The subordinate ids of the user `kubelet`.

use std::io;
use std::process::Command;

const USER: &str = "kubelet";

/// The first one and how many, the same for users and groups; nothing where there is no such user, or no program that
/// tells. Runs programs, and waits for them.
pub(super) fn ids_of_kubelet() -> Result<Option<(u64, u64)>, String> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_user = |line: &str| line.split(':').next() == Some(USER);
    if !users.lines().any(is_user) {
        return Ok(None);
    }
    let Some(uids) = run(&[USER])? else { return Ok(None) };
    let Some(gids) = run(&["-g", USER])? else {
        return Ok(None);
    };
    parse(&uids, &gids).map(Some)
}

/// What the program prints; nothing if it is not there.
fn run(arguments: &[&str]) -> Result<Option<String>, String> {
    let failed = |why: String| format!("getsubids {}: {why}", arguments.join(" "));
    match Command::new("getsubids").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// `0: kubelet 65536 7208960`, once for users and once for groups.
fn parse(uids: &str, gids: &str) -> Result<(u64, u64), String> {
    if uids != gids {
        return Err(format!(
            "the subordinate users and groups of {USER} differ: {uids:?}, {gids:?}"
        ));
    }
    let wrong = || format!("{USER} does not have one range of subordinate ids: {uids:?}");
    let line = uids.trim_end();
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["0:", USER, first, count] if line.lines().count() == 1 => match (first.parse(), count.parse()) {
            (Ok(first), Ok(count)) => Ok((first, count)),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn one_range_is_wanted_for_users_and_groups() {
        let good = "0: kubelet 65536 7208960\n";
        assert_eq!(parse(good, good), Ok((65_536, 7_208_960)));
        for bad in [
            "",
            "0: kubelet 65536\n",
            "0: other 65536 7208960\n",
            "0: kubelet 65536 7208960\n1: kubelet 9999999 65536\n",
            "0: kubelet -1 7208960\n",
        ] {
            assert!(parse(bad, bad).is_err(), "{bad}");
        }
        assert!(
            parse(good, "0: kubelet 131072 7208960\n")
                .unwrap_err()
                .contains("differ")
        );
    }
}
