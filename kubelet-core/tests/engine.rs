//! The whole engine on the fake runtime, in simulated time.

mod engine {
    mod endings;
    mod harness;
    mod leftovers;
    mod life;
    mod lifecycle_faults;
    mod repetition;
    mod runtime_faults;
    mod source_faults;
    mod whole_pods;
    mod wishes;
}
