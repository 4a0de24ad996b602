//! Policies in C, compiled and run on observations from a file.
//!
//! Targets are those that this machine has compilers for.

use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rl_policy::{Action, Choice, Obs, Policy, stack};

/// Steps of an episode, after which state and frames begin again.
pub(crate) const EPISODE: usize = 7;
/// Multiply-adds of a slow target's program, weighted by their cost.
///
/// `RL_EXPORT_COST` replaces it.
const MAX_COST: usize = 12_000_000_000;
/// Stream of the random actions: environment i draws with index i + 5.
const SAMPLE: Choice = Choice::Sample { seed: 1 << 40 | 9, env: 5, step: 1 << 33 | 6 };

/// Files that programs for other targets need.
const FILES: [(&str, &str); 3] = [
    ("wasm.js", include_str!("wasm.js")),
    ("cortex_m.c", include_str!("cortex_m.c")),
    ("cortex_m.ld", include_str!("cortex_m.ld")),
];

/// A compiler with its flags, and what runs its programs.
#[derive(Debug)]
pub(crate) struct Target {
    compiler: Vec<&'static str>,
    runner: Vec<&'static str>,
    is_wasm: bool,
    /// Time of a multiply-add, where 1 is a vector unit's.
    cost: usize,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.compiler.join(" "))?;
        match self.runner[..] {
            [.., "-cpu", processor] => write!(f, " on {processor}"),
            ["chromium"] => f.write_str(" in Chromium"),
            _ => Ok(()),
        }
    }
}

/// Targets that this machine has compilers for.
///
/// With `RL_EXPORT_ALL=1`, every level of optimisation.
pub(crate) fn targets() -> Vec<Target> {
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    let all = std::env::var_os("RL_EXPORT_ALL").is_some();
    let mut targets = Vec::new();
    let mut target = |compiler: &[&'static str], runner: &[&'static str], is_wasm, cost| {
        targets.push(Target { compiler: compiler.to_vec(), runner: runner.to_vec(), is_wasm, cost });
    };
    for cc in ["gcc", "clang"].into_iter().filter(|cc| runs(cc)) {
        target(&[cc, "-O0", "-std=c99", "-pedantic"], &[], false, 200);
        target(&[cc, "-O3", "-march=native", "-ffp-contract=fast"], &[], false, 1);
        // On x86-64, the processor chooses between the instruction and double; without a host there is no choice.
        if all || cc == "gcc" || !runs("gcc") {
            target(&[cc, "-O2"], &[], false, if cfg!(target_arch = "x86_64") { 1 } else { 40 });
        }
        if all {
            target(&[cc, "-O2", "-ffreestanding"], &[], false, 40);
            target(&[cc, "-O3", "-march=native"], &[], false, 1);
            if cfg!(target_arch = "x86_64") && runs("qemu-x86_64") {
                target(&[cc, "-O2", "-static"], &["qemu-x86_64", "-cpu", "Nehalem"], false, 2_400);
            }
        }
    }
    if runs("aarch64-linux-gnu-gcc") && runs("qemu-aarch64") {
        target(&["aarch64-linux-gnu-gcc", "-O2", "-static"], &["qemu-aarch64"], false, 200);
    }
    if runs("arm-none-eabi-gcc") && runs("qemu-system-arm") {
        const GCC: [&str; 5] = ["arm-none-eabi-gcc", "-O2", "--specs=rdimon.specs", "-mthumb", "-Tcortex_m.ld"];
        let board =
            |name| ["qemu-system-arm", "-nographic", "-semihosting-config", "enable=on,target=native", "-M", name, "-kernel"];
        let m4 = ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "cortex_m.c"];
        target(&[&GCC[..], &m4].concat(), &board("mps2-an386"), false, 200);
        target(&[&GCC[..], &["-mcpu=cortex-m3", "cortex_m.c"]].concat(), &board("mps2-an385"), false, 16_000);
    }
    if runs("clang") && runs("wasm-ld") && runs("node") {
        target(&["clang", "--target=wasm32", "-O2", "-nostdlib"], &["node"], true, 200);
        if all && runs("chromium") {
            target(&["clang", "--target=wasm32", "-O2", "-nostdlib"], &["chromium"], true, 200);
        }
    }
    targets
}

/// Serves the files of a directory over HTTP; returns the port.
fn serve(dir: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            request.read_line(&mut line).unwrap();
            let name = line.split(' ').nth(1).unwrap_or("/").trim_start_matches('/');
            let kind = if name.ends_with(".wasm") { "application/wasm" } else { "text/html" };
            // The rest of the request, up to its empty line.
            while request.read_line(&mut String::new()).is_ok_and(|n| n > 2) {}
            let (status, body) = std::fs::read(dir.join(name)).map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    port
}

/// Returns what a page of `dir` shows in a browser once its scripts have run.
pub(crate) fn shown(dir: &Path, page: &str) -> String {
    let url = format!("http://127.0.0.1:{}/{page}", serve(dir.to_path_buf()));
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom", &url]);
    let output = browser.env("HOME", dir).output().unwrap();
    assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A program that acts on the observations of a file.
///
/// The file `input` holds observations and masks, the file `output` gets actions and outputs. The program fails if the policy's
/// own test does.
pub(crate) fn driver(name: &str, loaded: &Policy<'_>, draws: bool) -> String {
    let upper = name.to_ascii_uppercase();
    let element = if loaded.reads_bytes() { "uint8_t" } else { "float" };
    let action = if loaded.is_discrete() { "uint32_t" } else { "float" };
    let (mask, get_mask) = if loaded.mask_len() > 0 {
        (" mask,", format!("static uint8_t mask[{upper}_MASK];\n        if (fread(mask, sizeof mask, 1, in) != 1) return 3;"))
    } else {
        ("", String::new())
    };
    let sample = if draws {
        format!("copy = memory;\n        {name}_sample(&copy, obs,{mask} SEED, 5 + i, STEP, action);\n        PUT(action);")
    } else {
        String::new()
    };
    format!(
        "#include <stdio.h>
#include \"{name}.h\"
#define SEED ((uint64_t)1 << 40 | 9)
#define STEP ((uint64_t)1 << 33 | 6)
#define PUT(x) fwrite(x, sizeof x, 1, out)
static {name}_memory memory, copy;
int main(void) {{
    static {element} obs[{upper}_OBS];
    {action} action[{upper}_ACTION];
    uint32_t i;
    FILE *in = fopen(\"input\", \"rb\"), *out = fopen(\"output\", \"wb\");
    if (!in || !out) return 2;
    for (i = 0; fread(obs, sizeof obs, 1, in) == 1; i++) {{
        {get_mask}
        if (i % {EPISODE} == 0) {name}_reset(&memory);
        {sample}
        {name}_act(&memory, obs,{mask} action);
        PUT(action);
        fwrite({name}_outputs(&memory), sizeof(float), {upper}_OUTPUTS, out);
    }}
    fclose(out);
    return {name}_test(&copy) ? 1 : 0;
}}
"
    )
}

/// A page that acts on the file `input`, and compares with the file `expected`.
fn page(name: &str, lens: [usize; 4]) -> String {
    format!(
        "<!doctype html>
<body></body>
<script src=\"wasm.js\"></script>
<script type=\"module\">
  const file = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
  const [program, input, expected] = [await file(\"program\"), await file(\"input\"), await file(\"expected\")];
  const header = await (await fetch(\"{name}.h\")).text();
  const [output, failed] = play(program, header, input, \"{name}\", ...{lens:?});
  const same = output.length === expected.length && output.every((byte, i) => byte === expected[i]);
  document.body.textContent = `${{output.length}} bytes, the same: ${{same}}, its own test fails: ${{failed}}`;
</script>
"
    )
}

/// Observations for [`driver`], and what it must write.
pub(crate) struct Streams<'a> {
    loaded: Policy<'a>,
    draws: bool,
    memory: Vec<f32>,
    floats: Vec<f32>,
    bytes: Vec<u8>,
    /// Number of observations so far.
    n: usize,
    input: Vec<u8>,
    expected: Vec<u8>,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(loaded: Policy<'a>, draws: bool) -> Self {
        let (memory, d) = (vec![0.0; loaded.memory_len()], loaded.obs_len());
        Self { loaded, draws, memory, floats: vec![0.0; d], bytes: vec![0; d], n: 0, input: Vec::new(), expected: Vec::new() }
    }

    /// Adds an observation, of which the first frame is seen, and a mask.
    ///
    /// A policy that remembers has a state of its own here, from step to step of an episode.
    pub(crate) fn push(&mut self, obs: Obs<'_>, mask: &[u8]) {
        let Self { loaded, draws, memory, floats, bytes, n, input, expected } = self;
        let frame = loaded.obs_len() / loaded.frames();
        let first = *n % EPISODE == 0;
        if first {
            loaded.reset(memory);
        }
        let state = memory[..loaded.state_len()].to_vec();
        let obs = match obs {
            Obs::F32(obs) => {
                input.extend(obs[..frame].iter().flat_map(|x| x.to_le_bytes()));
                stack(floats, &obs[..frame], first);
                Obs::F32(floats)
            }
            Obs::U8(obs) => {
                input.extend(&obs[..frame]);
                stack(bytes, &obs[..frame], first);
                Obs::U8(bytes)
            }
        };
        input.extend(mask);
        let Choice::Sample { seed, env, step } = SAMPLE else { unreachable!() };
        let sample = Choice::Sample { seed, env: env + *n as u32, step };
        for choice in draws.then_some(sample).into_iter().chain([Choice::Greedy]) {
            let (mut choices, mut vector) = (vec![0; loaded.action_len()], vec![0.0; loaded.action_len()]);
            memory[..state.len()].copy_from_slice(&state);
            if loaded.is_discrete() {
                loaded.act(obs, mask, choice, memory, Action::Discrete(&mut choices)).unwrap();
                expected.extend(choices.iter().flat_map(|x| x.to_le_bytes()));
            } else {
                loaded.act(obs, mask, choice, memory, Action::Continuous(&mut vector)).unwrap();
                expected.extend(vector.iter().flat_map(|x| x.to_le_bytes()));
            }
        }
        memory[..state.len()].copy_from_slice(&state);
        expected.extend(loaded.outputs(obs, memory).unwrap().iter().flat_map(|x| x.to_le_bytes()));
        *n += 1;
    }

    /// Compiles `dir/name.c` for a target, runs it, and checks its output.
    ///
    /// On slow targets it sees the first observations only, so that it takes seconds. Returns the number of observations and the
    /// seconds that the program ran.
    pub(crate) fn check(&self, dir: &Path, name: &str, target: &Target, multiply_adds: usize) -> (usize, f64) {
        let Target { compiler, runner, is_wasm, cost } = target;
        let max_cost = std::env::var("RL_EXPORT_COST").map_or(MAX_COST, |cost| cost.parse().unwrap());
        let n = if *cost > 1 { self.n.min(max_cost / (multiply_adds * cost)) } else { self.n };
        let part = |bytes: &[u8]| bytes.len() / self.n * n;
        std::fs::write(dir.join("input"), &self.input[..part(&self.input)]).unwrap();
        let expected = &self.expected[..part(&self.expected)];
        for (file, text) in FILES {
            std::fs::write(dir.join(file), text).unwrap();
        }
        std::fs::write(dir.join("driver.c"), driver(name, &self.loaded, self.draws)).unwrap();
        let define = format!("-D{}_TEST", name.to_ascii_uppercase());
        let source = format!("{name}.c");
        let mut cc = Command::new(compiler[0]);
        cc.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", &define, "-o", "program", &source]).current_dir(dir);
        if *is_wasm {
            cc.args(["-Wl,--no-entry", "-Wl,--export-all", "-mbulk-memory"]);
        } else {
            cc.arg("driver.c");
        }
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{name}, {target:?}: {}", String::from_utf8_lossy(&output.stderr));
        let program = dir.join("program");
        let element = if self.loaded.reads_bytes() { 1 } else { 4 };
        let lens = [element, self.loaded.mask_len(), usize::from(self.draws), EPISODE];
        if *runner == ["chromium"] {
            std::fs::write(dir.join("expected"), expected).unwrap();
            std::fs::write(dir.join("page.html"), page(name, lens)).unwrap();
            let begin = Instant::now();
            let said = shown(dir, "page.html");
            let right = format!("{} bytes, the same: true, its own test fails: false", expected.len());
            assert!(said.contains(&right), "{name}, {target:?}: {said}");
            return (n, begin.elapsed().as_secs_f64());
        }
        let mut run = if *is_wasm {
            let mut run = Command::new(runner[0]);
            run.arg("wasm.js").arg(name).args(lens.map(|n| n.to_string()));
            run
        } else if let [first, rest @ ..] = &runner[..] {
            let mut run = Command::new(first);
            run.args(rest).arg(&program);
            run
        } else {
            Command::new(&program)
        };
        let begin = Instant::now();
        let status = run.current_dir(dir).status().unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        assert!(status.success(), "{name}, {target:?}: {status}");
        let written = std::fs::read(dir.join("output")).unwrap();
        let differing = written.iter().zip(expected).position(|(a, b)| a != b);
        assert!(written.len() == expected.len() && differing.is_none(), "{name}, {target:?}: byte {differing:?} differs");
        (n, seconds)
    }
}
