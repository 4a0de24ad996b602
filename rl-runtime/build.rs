//! Names the commit for `rl --version`, and compiles the calls of MPI for the feature `mpi`.
//!
//! MPI's own compiler `mpicc` (or the command in `MPICC`) knows the headers and libraries. rsmpi is not used: its bindgen needs
//! libclang, and changes the features of syn, so that every dependency would be compiled once more.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=RL_TARGET={}", env::var("TARGET").expect("cargo sets it"));
    println!("cargo::rustc-env=RL_COMMIT={}", commit());
    if env::var_os("CARGO_FEATURE_MPI").is_none() {
        return;
    }
    let source = "src/ranks/mpi/calls.c";
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

/// Short hash of the commit, with "+" after it if files have changed since.
///
/// "unreleased" in the dev profile, where naming the commit would compile the crate again after each one.
fn commit() -> String {
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return "unreleased".into();
    }
    // What `cargo package` writes.
    let packaged = std::fs::read_to_string(".cargo_vcs_info.json").unwrap_or_default();
    if let Some((_, hash)) = packaged.split_once("\"sha1\": \"") {
        return hash.chars().take_while(char::is_ascii_hexdigit).take(7).collect();
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // These sources may lie inside of another repository.
    let hash = git(&["ls-files", "--error-unmatch", "build.rs"]).and_then(|_| git(&["rev-parse", "--short=7", "HEAD"]));
    let Some(hash) = hash else { return "unknown commit".into() };
    // The log of HEAD changes with each commit; all sources may change the answer.
    for path in
        [git(&["rev-parse", "--git-path", "logs/HEAD"]), git(&["rev-parse", "--show-toplevel"]).map(|top| top + "/Cargo.lock")]
            .into_iter()
            .flatten()
            .chain(
                ["rl-policy", "rl-envs", "rl-cuda", "rl-buffer", "rl-agents", "rl-runtime"].map(|name| format!("../{name}/src")),
            )
            .filter(|path| Path::new(path).exists())
    {
        println!("cargo::rerun-if-changed={path}");
    }
    let is_clean =
        git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]).is_some_and(|changed| changed.is_empty());
    if is_clean { hash } else { hash + "+" }
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status();
    let hint = "the feature mpi needs an MPI installation with its compiler, such as Debian's libopenmpi-dev";
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{program} {}: {status:?}; {hint}", args.join(" "));
}
