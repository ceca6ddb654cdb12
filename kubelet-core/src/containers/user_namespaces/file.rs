//! The file with the users of a pod.

use serde::{Deserialize, Serialize};

use crate::runtime::{IdMapping, UserNamespace};

/// The least that a pod has; what is below belongs to the host's own users.
const LEAST: u32 = 65_536;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    uid_mappings: Vec<Entry>,
    gid_mappings: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    host_id: u32,
    container_id: u32,
    length: u32,
}

pub(super) fn print(users: &UserNamespace) -> String {
    let entries = |blocks: &[IdMapping]| {
        let entry = |block: &IdMapping| Entry {
            host_id: block.host_id,
            container_id: block.container_id,
            length: block.length,
        };
        blocks.iter().map(entry).collect()
    };
    let file = File {
        uid_mappings: entries(&users.uids),
        gid_mappings: entries(&users.gids),
    };
    // Numbers always have a form in JSON.
    serde_json::to_string(&file).unwrap_or_default()
}

/// One block, the same for users and groups: no more was ever given, and a pod must not have users of the host itself.
pub(super) fn parse(text: &str) -> Result<UserNamespace, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let block = |entries: &[Entry]| match entries {
        [entry] => Ok(IdMapping::new(entry.host_id, entry.container_id, entry.length)),
        several => Err(format!("{} mappings instead of one", several.len())),
    };
    let (uids, gids) = (block(&file.uid_mappings)?, block(&file.gid_mappings)?);
    if uids != gids {
        return Err("users and groups differ".to_owned());
    }
    if uids.container_id != 0 {
        return Err(format!("it begins with {}, and not with root", uids.container_id));
    }
    if uids.host_id < LEAST || uids.length < LEAST || uids.host_id.checked_add(uids.length).is_none() {
        return Err(format!("{} ids from {} on are not a pod's", uids.length, uids.host_id));
    }
    Ok(UserNamespace::of_block(uids))
}

#[cfg(test)]
mod tests {
    use super::{parse, print};
    use crate::runtime::{IdMapping, UserNamespace};

    #[test]
    fn what_is_written_is_read() {
        let users = UserNamespace::of_block(IdMapping::new(131_072, 0, 65_536));
        assert_eq!(parse(&print(&users)).unwrap(), users);
    }

    #[test]
    fn what_was_never_given_is_refused() {
        let entry = |host: u32, inside: u32, length: u32| {
            format!(r#"{{"hostId":{host},"containerId":{inside},"length":{length}}}"#)
        };
        let file = |uids: &str, gids: &str| format!(r#"{{"uidMappings":[{uids}],"gidMappings":[{gids}]}}"#);
        let good = entry(65_536, 0, 65_536);
        assert!(parse(&file(&good, &good)).is_ok());
        let both = |entry: String| file(&entry, &entry);
        for bad in [
            String::new(),
            "{}".to_owned(),
            file(&good, ""),
            file(&format!("{good},{good}"), &good),
            file(&good, &entry(131_072, 0, 65_536)),
            both(entry(0, 0, 65_536)),
            both(entry(1000, 0, 65_536)),
            both(entry(65_536, 1, 65_536)),
            both(entry(65_536, 0, 1)),
            both(entry(4_294_901_760, 0, 65_536)),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }
}
