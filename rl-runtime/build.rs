//! Compiles the calls of MPI for the feature `mpi`; does nothing without it.
//!
//! MPI's own compiler `mpicc` (or the command in `MPICC`) knows the headers and libraries. rsmpi is not used: its bindgen needs
//! libclang, and changes the features of syn, so that every dependency would be compiled once more.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_MPI").is_none() {
        return;
    }
    let source = "src/mpi/calls.c";
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-env-changed=MPICC");
    let mpicc = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let dir = env::var("OUT_DIR").expect("cargo sets it");
    let (object, library) = (format!("{dir}/calls.o"), format!("{dir}/librl_mpi.a"));
    run(&mpicc, &["-O2", "-fPIC", "-Wall", "-Werror", "-c", source, "-o", &object]);
    let _ = std::fs::remove_file(&library);
    run("ar", &["crs", &library, &object]);
    println!("cargo::rustc-link-search=native={dir}");
    println!("cargo::rustc-link-lib=static=rl_mpi");
    // Open MPI's option, and that of MPICH and its relatives.
    let flags = ["--showme:link", "-show"].into_iter().find_map(|option| {
        let output = Command::new(&mpicc).arg(option).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    });
    for flag in flags.expect("mpicc prints its flags").split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={dir}");
        } else if let Some(name) = flag.strip_prefix("-l") {
            println!("cargo::rustc-link-lib=dylib={name}");
        }
    }
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status();
    let hint = "the feature mpi needs an MPI installation with its compiler, such as Debian's libopenmpi-dev";
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{program} {}: {status:?}; {hint}", args.join(" "));
}
