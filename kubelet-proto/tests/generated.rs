//! The generated code is what its `.proto` files say. After a change of one of them, or of a generator:
//!
//! ```sh
//! KUBELET_PROTO_UPDATE=1 cargo test -p kubelet-proto --features cri --test generated
//! ```
//!
//! Leave `--features` out where the committed code does not compile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;

use tonic_prost_build::Builder;

/// An API whose code is committed.
struct Api {
    /// Where its imports begin.
    include: &'static str,
    /// Its file, below `include`.
    proto: &'static str,
    /// What prost names its file, after the package.
    written: &'static str,
    /// Where the code is committed.
    committed: &'static str,
    /// What is peculiar to it.
    configure: fn(Builder) -> Builder,
}

const APIS: &[Api] = &[Api {
    include: "proto/cri",
    proto: "runtime/v1/api.proto",
    written: "runtime.v1.rs",
    committed: "src/generated/cri_v1.rs",
    configure: |builder| {
        builder
            // Output of commands may be long, and need not be copied out of the message.
            .bytes(".runtime.v1.ExecSyncResponse")
            // What holds secrets is printed by hand.
            .skip_debug([".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"])
    },
}];

#[test]
fn the_committed_code_is_what_the_protos_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let update = std::env::var_os("KUBELET_PROTO_UPDATE").is_some();
    for api in APIS {
        let generated = generate(root, api);
        let committed = root.join(api.committed);
        if update {
            std::fs::write(&committed, generated).unwrap();
            continue;
        }
        let found = std::fs::read_to_string(&committed).unwrap_or_default();
        let difference = generated.lines().zip(found.lines()).position(|(a, b)| a != b);
        assert!(
            generated == found,
            "{} is not what {} says, from line {} on; see the head of this test for how to make it anew",
            api.committed,
            api.proto,
            difference.unwrap_or_else(|| generated.lines().count().min(found.lines().count())) + 1,
        );
    }
}

/// The code of an API, made in a folder of its own.
fn generate(root: &Path, api: &Api) -> String {
    let descriptors = protox::compile([api.proto], [root.join(api.include)]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = tonic_prost_build::configure()
        .out_dir(folder.path())
        // Maps in order: the same message is the same bytes, and core's maps are of this kind.
        .btree_map(".")
        // A call that a later Kubernetes adds breaks nobody who serves the API.
        .generate_default_stubs(true)
        // Channels come from `unix`; the constructors left out here know TCP.
        .build_transport(false);
    (api.configure)(builder).compile_fds(descriptors).unwrap();
    std::fs::read_to_string(folder.path().join(api.written)).unwrap()
}
