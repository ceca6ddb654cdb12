use kubelet_core::{
    ContainerConfig, ContainerId, Device, IdMapping, ImageMount, ImageRef, LinuxResources, LinuxSecurity, Mount,
    MountPropagation, NamespaceMode, PodKey, PodUid, SandboxConfig, UserNamespace,
};
use kubelet_proto::cri::v1;

use super::{container_config, container_status, resources, sandbox_config};

fn mapping(host_id: u32) -> v1::IdMapping {
    v1::IdMapping {
        host_id,
        container_id: 0,
        length: 65_536,
    }
}

fn users() -> UserNamespace {
    let mut users = UserNamespace::of_block(IdMapping::new(65_536, 0, 65_536));
    users.gids = vec![IdMapping::new(131_072, 0, 65_536)];
    users
}

#[test]
fn every_limit_is_told() {
    let mut limits = LinuxResources::default();
    limits.cpu_shares = 512;
    limits.cpu_quota = -1;
    limits.cpu_period = 100_000;
    limits.cpuset_cpus = "0-2".to_owned();
    limits.cpuset_mems = "1".to_owned();
    limits.memory_limit_bytes = 64;
    limits.memory_swap_limit_bytes = 65;
    limits.hugepage_limits.insert("2MB".to_owned(), 4 << 20);
    limits.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    limits.oom_score_adj = 999;
    let expected = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: -1,
        cpu_shares: 512,
        memory_limit_in_bytes: 64,
        oom_score_adj: 999,
        cpuset_cpus: "0-2".to_owned(),
        cpuset_mems: "1".to_owned(),
        hugepage_limits: vec![v1::HugepageLimit {
            page_size: "2MB".to_owned(),
            limit: 4 << 20,
        }],
        unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
        memory_swap_limit_in_bytes: 65,
    };
    assert_eq!(resources(&limits), expected);
}

#[test]
fn users_of_its_own_are_told_of_the_sandbox_its_containers_and_their_mounts() {
    let mut sandbox = SandboxConfig::new(PodUid::from("u1"), PodKey::new("default", "web"), 0);
    let options = |sandbox: &SandboxConfig| {
        let linux = sandbox_config(sandbox).linux.unwrap();
        linux.security_context.unwrap().namespace_options.unwrap()
    };
    let host = options(&sandbox).userns_options.unwrap();
    assert_eq!(host.mode(), v1::NamespaceMode::Node);
    assert!(host.uids.is_empty() && host.gids.is_empty());
    sandbox.security.user_namespace = Some(users());
    let expected = v1::UserNamespace {
        mode: v1::NamespaceMode::Pod.into(),
        uids: vec![mapping(65_536)],
        gids: vec![mapping(131_072)],
    };
    assert_eq!(options(&sandbox).userns_options, Some(expected.clone()));

    let mut container = ContainerConfig::new("app", 0, ImageRef::new("i"));
    container.security.user_namespace = Some(users());
    let mut mount = Mount::new("/data", "/host");
    mount.id_mappings = Some(users());
    container.mounts = vec![mount];
    let told = container_config(&container);
    assert_eq!(told.mounts[0].uid_mappings, [mapping(65_536)]);
    assert_eq!(told.mounts[0].gid_mappings, [mapping(131_072)]);
    let security = told.linux.unwrap().security_context.unwrap();
    assert_eq!(security.namespace_options.unwrap().userns_options, Some(expected));
}

#[test]
fn a_mounted_image_is_told_and_read_back() {
    let mut image = ImageMount::new(ImageRef::with_asked("sha256:1", "reg.example/model:1"));
    image.handler = "kata".to_owned();
    image.annotations.insert("a".to_owned(), "b".to_owned());
    image.sub_path = "texts/en".to_owned();
    let mut mount = Mount::new("/model", "");
    mount.read_only = true;
    mount.image = Some(image);
    let mut container = ContainerConfig::new("app", 0, ImageRef::new("i"));
    container.mounts = vec![mount, Mount::new("/data", "/host")];
    let told = container_config(&container).mounts;
    let expected = v1::Mount {
        container_path: "/model".to_owned(),
        readonly: true,
        image: Some(v1::ImageSpec {
            image: "sha256:1".to_owned(),
            user_specified_image: "reg.example/model:1".to_owned(),
            runtime_handler: "kata".to_owned(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            ..v1::ImageSpec::default()
        }),
        image_sub_path: "texts/en".to_owned(),
        ..v1::Mount::default()
    };
    assert_eq!(told[0], expected);
    assert_eq!((&told[1].image, told[1].image_sub_path.as_str()), (&None, ""));
    let status = v1::ContainerStatus {
        id: "c1".to_owned(),
        metadata: Some(v1::ContainerMetadata {
            name: "app".to_owned(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: "i".to_owned(),
            ..v1::ImageSpec::default()
        }),
        image_ref: "i".to_owned(),
        created_at: 1,
        mounts: told,
        ..v1::ContainerStatus::default()
    };
    assert_eq!(container_status(status).unwrap().mounted_images, ["sha256:1"]);
}

#[test]
fn mounts_devices_and_targets_are_told() {
    let mut container = ContainerConfig::new("app", 0, ImageRef::new("i"));
    let with = |propagation, recursive| {
        let mut mount = Mount::new("/data", "/host").relabelled();
        mount.read_only = recursive;
        mount.recursive_read_only = recursive;
        mount.propagation = propagation;
        mount
    };
    container.mounts = vec![
        with(MountPropagation::Private, true),
        with(MountPropagation::HostToContainer, false),
        with(MountPropagation::Bidirectional, false),
    ];
    container.devices = vec![Device::new("/dev/x", "/dev/host-x", "rw")];
    container.cdi_devices = vec!["vendor.example/class=one".to_owned()];
    let mut security = LinuxSecurity::default();
    security.namespaces.pid = NamespaceMode::Target;
    security.pid_target = Some(ContainerId::from("c7"));
    container.security = security;
    let told = container_config(&container);
    let mounts: Vec<_> = told
        .mounts
        .iter()
        .map(|mount| (mount.propagation, mount.readonly, mount.recursive_read_only))
        .collect();
    assert_eq!(mounts, [(0, true, true), (1, false, false), (2, false, false)]);
    let device = v1::Device {
        container_path: "/dev/x".to_owned(),
        host_path: "/dev/host-x".to_owned(),
        permissions: "rw".to_owned(),
    };
    assert_eq!(told.devices, [device]);
    assert_eq!(told.cdi_devices[0].name, "vendor.example/class=one");
    let options = told.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
    assert_eq!(options.pid(), v1::NamespaceMode::Target);
    assert_eq!(options.target_id, "c7");
}
