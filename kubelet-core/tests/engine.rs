//! The whole engine on the fake runtime, in simulated time.

mod engine {
    mod harness;
    mod life;
    mod whole_pods;
}
