//! ONNX models of the policies, run by Python's ONNX Runtime.
//!
//! Skipped without a `python3` that has onnxruntime and onnx, unless `RL_REQUIRE_ONNX=1`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rl_agents::Choice;
use rl_buffer::ObsSlice;
use rl_policy::{Exported, Head, Obs, Policy as Loaded, write};

use crate::cases::{Case, Seen, cases, originals};
use crate::compiled::EPISODE;

/// Observations of each policy.
const N: usize = 300;
/// Largest error of outputs, relative to the greatest of the row, and of actions.
const TOLERANCE: f32 = 1e-4;

fn has_runtime() -> bool {
    let output = Command::new("python3").args(["-c", "import onnx, onnxruntime"]).output();
    if output.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert_ne!(std::env::var("RL_REQUIRE_ONNX").as_deref(), Ok("1"), "python3 has no onnxruntime or no onnx");
    eprintln!("skipped: no python3 with onnxruntime and onnx");
    false
}

/// Reads an output of the model, which the script wrote.
fn floats(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Reads discrete actions, which the script wrote.
fn integers(path: &Path) -> Vec<i64> {
    let bytes = fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

/// Returns outputs (N, outputs), and states before and after each step (N, S).
fn outputs(exported: &Exported, seen: &Seen) -> [Vec<f32>; 3] {
    let file = write::file(exported);
    let loaded = Loaded::new(&file).unwrap();
    let mut memory = vec![0.0; loaded.memory_len()];
    let d = loaded.obs_len();
    let n_outputs = if let Head::Values { n, .. } = exported.head { n as usize } else { loaded.n_outputs() };
    let [mut outputs, mut before, mut after] = [(); 3].map(|()| Vec::new());
    for i in 0..N {
        if i % EPISODE == 0 {
            loaded.reset(&mut memory);
        }
        before.extend_from_slice(&memory[..loaded.state_len()]);
        let obs = if loaded.reads_bytes() { Obs::U8(&seen.bytes[i * d..][..d]) } else { Obs::F32(&seen.floats[i * d..][..d]) };
        outputs.extend_from_slice(&loaded.outputs(obs, &mut memory).unwrap()[..n_outputs]);
        after.extend_from_slice(&memory[..loaded.state_len()]);
    }
    [outputs, before, after]
}

/// Returns columns of a matrix with rows of `n`.
fn columns(matrix: &[f32], n: usize, columns: std::ops::Range<usize>) -> Vec<f32> {
    matrix.chunks_exact(n).flat_map(|row| &row[columns.clone()]).copied().collect()
}

/// Returns the largest error, relative to the greatest number of the same row.
fn error(got: &[f32], want: &[f32], n: usize) -> f32 {
    assert_eq!(got.len(), want.len());
    let of_row = |(got, want): (&[f32], &[f32])| {
        let greatest = want.iter().fold(f32::MIN_POSITIVE, |max, x| x.abs().max(max));
        let errors = got.iter().zip(want).map(|(got, want)| (got - want).abs() / greatest);
        errors.fold(0.0, |max: f32, error| if error <= max { max } else { error }) // NaN is an error
    };
    got.chunks_exact(n).zip(want.chunks_exact(n)).map(of_row).fold(0.0, |max, error| if error <= max { max } else { error })
}

/// Distance between the best choice's number and the next one's.
fn margin(numbers: &[f32], mask: &[u8]) -> f32 {
    let legal = numbers.iter().enumerate().filter(|(i, _)| mask.get(*i).is_none_or(|legal| *legal == 1));
    let mut legal: Vec<_> = legal.map(|(_, x)| *x).collect();
    legal.sort_by(f32::total_cmp);
    if let [.., next, best] = legal[..] { best - next } else { f32::INFINITY }
}

/// Compares the choices of each head, and prints those that differ.
///
/// `numbers` are those of all heads, (N, numbers).
fn compare_choices(name: &str, got: &[i64], want: &[u32], numbers: &[f32], sizes: &[usize], masks: &[u8]) -> usize {
    let (total, n_masked) = (sizes.iter().sum(), masks.len() / N);
    assert_eq!(got.len(), N * sizes.len(), "{name}");
    let mut n_differ = 0;
    for (i, numbers) in numbers.chunks_exact(total).enumerate() {
        let mut want = want[i] as usize;
        let mut end = total;
        for (head, &n) in sizes.iter().enumerate().rev() {
            let (choice, numbers) = (want % n, &numbers[end - n..end]);
            let (got, margin) = (got[i * sizes.len() + head], margin(numbers, &masks[i * n_masked..][..n_masked]));
            if got != choice as i64 {
                println!("{name}, observation {i}: choice {got} instead of {choice}, margin {margin:e}");
                assert!(margin < TOLERANCE, "{name}, observation {i}: choice {got} instead of {choice}, margin {margin:e}");
                n_differ += 1;
            }
            (want, end) = (want / n, end - n);
        }
    }
    n_differ
}

#[test]
fn an_onnx_model_acts_as_the_original() {
    if !has_runtime() {
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onnx");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let path = |name: &str, of: &str| dir.join(format!("{name}.{of}"));
    for Case { name, spaces, policy } in cases() {
        let seen = Seen::of(&spaces, N);
        let mut exported = policy.exported(&spaces).unwrap();
        exported.about = format!("the policy {name}");
        fs::write(path(name, "onnx"), write::onnx(&exported)).unwrap();
        fs::write(path(name, "mask"), &seen.masks).unwrap();
        let obs = match seen.obs(spaces.obs.dtype()) {
            ObsSlice::F32(obs) => obs.iter().flat_map(|x| x.to_le_bytes()).collect(),
            ObsSlice::U8(obs) => obs.to_vec(),
        };
        fs::write(path(name, "obs"), obs).unwrap();
        let [_, states, _] = outputs(&exported, &seen);
        fs::write(path(name, "state"), states.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exported/onnx_runtime.py");
    let output = Command::new("python3").arg(script).arg(&dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for case in cases() {
        let Case { name, spaces, policy } = &case;
        let (exported, seen) = (policy.exported(spaces).unwrap(), Seen::of(spaces, N));
        let original = originals(&case, &seen, N, Choice::Greedy);
        let [want, _, next_states] = outputs(&exported, &seen);
        let n = want.len() / N;
        let (mut expected, sizes) = match &exported.head {
            Head::Categorical { sizes, .. } => (vec![("logits", want.clone())], sizes.iter().map(|&n| n as usize).collect()),
            Head::Values { .. } => (vec![("q", want.clone())], vec![n]),
            Head::Gaussian { log_std, .. } => (vec![("mean", want.clone()), ("log_std", log_std.repeat(N))], Vec::new()),
            Head::Squashed { .. } => {
                let log_std = columns(&want, n, n / 2..n).iter().map(|x| x.clamp(-20.0, 2.0)).collect();
                (vec![("mean", columns(&want, n, 0..n / 2)), ("log_std", log_std)], Vec::new())
            }
            Head::Deterministic { .. } => (vec![("mean", want.clone())], Vec::new()),
        };
        if !next_states.is_empty() {
            expected.push(("next_state", next_states));
        }
        let mut said = name.to_string();
        for (output, want) in &expected {
            let error = error(&floats(&path(name, output)), want, want.len() / N);
            said += &format!(", {output}: relative error {error:.1e}");
            assert!(error < TOLERANCE, "{said}");
        }
        if sizes.is_empty() {
            let got = floats(&path(name, "action"));
            assert_eq!(got.len(), original.vectors.len(), "{name}");
            let differences = got.iter().zip(&original.vectors).map(|(got, want)| (got - want).abs() / want.abs().max(1.0));
            let error = differences.fold(0.0, |max: f32, x| if x <= max { max } else { x });
            println!("{said}, action: error {error:.1e}");
            assert!(error < TOLERANCE, "{name}: action differs by {error:e}");
        } else {
            let n_differ =
                compare_choices(name, &integers(&path(name, "action")), &original.discrete, &want, &sizes, &seen.masks);
            println!("{said}, {n_differ} of {N} actions differ");
        }
    }
}
