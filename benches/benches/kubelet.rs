//! Prints what a kubelet costs: `cargo bench -p kubelet-benches`, or `… -- memory relist` for some rows only.

use kubelet_benches::{Sizes, resident_after, run};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, weight, count] = words.as_slice()
        && flag == "--resident"
    {
        println!("{}", resident_after(weight, count.parse().expect("a number of pods")));
        return;
    }
    // Test runners ask every program for its tests; this one has none.
    if words.iter().any(|word| word == "--list") {
        return;
    }
    let chosen: Vec<String> = words.into_iter().filter(|word| !word.starts_with('-')).collect();
    let sizes = if cfg!(debug_assertions) {
        Sizes::smoke()
    } else {
        Sizes::full()
    };
    run(&sizes, &chosen, |row| println!("{row}"));
}
