//! The `longhaul` binary: one program, one role a process.

use std::process::ExitCode;

use clap::Parser as _;
use longhaul_cli::config::{self, Wrong};
use longhaul_cli::role::Arguments;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A wrong config or command line (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let help = !error.use_stderr();
            // Nowhere is left to complain to if this fails.
            let _ = error.print();
            return if help { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) };
        }
    };
    let environment = config::environment(std::env::vars_os());
    match environment.map_err(Into::into).and_then(|environment| arguments.run(environment)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul: {error:#}");
            if error.is::<Wrong>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
