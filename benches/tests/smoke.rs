//! Tries all measurements at sizes at which they mean nothing.

use kubelet_benches::{Sizes, run};

#[test]
fn everything_can_be_measured() {
    let mut rows = 0;
    run(&Sizes::smoke(), &[], |_| rows += 1);
    assert!(rows > 20, "{rows} rows");
}
