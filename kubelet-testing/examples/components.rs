//! Makes the images of tests with a private containerd, and removes what tests left that were killed.
//!
//! ```sh
//! cargo run -p kubelet-testing --features containerd --example components -- images target/components/images
//! cargo run -p kubelet-testing --features containerd --example components -- clean
//! ```

#![expect(clippy::print_stdout, reason = "a program says what it made")]

use std::env;
use std::error::Error;
use std::path::Path;

use kubelet_testing::{remove_leftovers, write_base_images};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["images", folder] => {
            for image in write_base_images(Path::new(folder))? {
                println!("{}", image.display());
            }
            Ok(())
        }
        ["clean"] => {
            for folder in remove_leftovers()? {
                println!("removed what was left of {}", folder.display());
            }
            Ok(())
        }
        _ => Err("usage: components images FOLDER | clean".into()),
    }
}
