//! The whole engine on the fake runtime, in simulated time.

mod engine {
    mod admission_faults;
    mod cgroups;
    mod clock_faults;
    mod endings;
    mod garbage;
    mod harness;
    mod http_hooks;
    mod image_accounts;
    mod image_gc;
    mod image_volumes;
    mod images;
    mod leftovers;
    mod life;
    mod lifecycle_faults;
    mod log_faults;
    mod log_links;
    mod node_faults;
    mod object_faults;
    mod preemption;
    mod probe_faults;
    mod probes;
    mod repetition;
    mod resize;
    mod resize_crash;
    mod resize_memory;
    mod resize_pod_level;
    mod resize_whole;
    mod restart_faults;
    mod runtime_faults;
    mod sandbox_faults;
    mod source_faults;
    mod static_faults;
    mod volume_ends;
    mod volumes;
    mod whole_pods;
    mod wishes;
}
