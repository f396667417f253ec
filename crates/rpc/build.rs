//! Compiles the protos into `OUT_DIR`; needs nothing installed.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("../../proto");
    let files =
        ["task", "tasks", "work", "calls", "control"].map(|name| root.join(format!("longhaul/v1/{name}.proto")));
    let descriptors = protox::compile(&files, [root])?;
    // Payloads are `Bytes`: handed on, never copied.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed={}", root.display());
    Ok(())
}
