//! Training, resuming and evaluating: the same files as those of `rl train`.

use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, TryLockError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use rl_agents::EvalConfig;
use rl_envs::Pool;
use rl_envs::catalog::Entry;
use rl_runtime::checkpoint::Export;
use rl_runtime::config::{EnvConfig, Layers};
use rl_runtime::evaluation::{Evaluation, evaluate_policy, evaluation_seed};
use rl_runtime::event::Event;
use rl_runtime::profile::Profile;
use rl_runtime::resume::{Resumed, Source};
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::{End, Outcome, Training, describe_device};
use rl_runtime::worker::WorkerOptions;
use rl_runtime::{Algo, Config, Error, budget::Budget, checkpoint, interrupt, open_env};
use toml::Value;

use crate::error::{bad, raised};

/// Time between two looks at Python's signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// Held by the training of this process.
///
/// An interrupt ends the training of the process, whichever it is.
static TRAINS: Mutex<()> = Mutex::new(());

/// Message of a training to the thread of Python.
enum Told {
    Begun {
        path: PathBuf,
        env: String,
        algo: String,
        steps: u64,
    },
    /// Metrics; the training waits until the sender is dropped, if there is one.
    Row(Vec<(&'static str, f64)>, Option<Sender<()>>),
    Evaluation {
        env_steps: u64,
        result: Evaluation,
    },
    Warning(String),
}

/// Converts a value of Python to one of a setting.
fn value(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    // A bool is an int, too.
    if given.is_instance_of::<PyBool>() {
        return Ok(Value::Boolean(given.extract()?));
    }
    if given.is_instance_of::<PyString>() {
        return Ok(Value::String(given.extract()?));
    }
    if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        return given.try_iter()?.map(|each| value(&each?)).collect::<PyResult<_>>().map(Value::Array);
    }
    if given.is_instance_of::<PyInt>() {
        return Ok(Value::Integer(given.extract()?));
    }
    if given.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(given.extract()?));
    }
    let kind = given.get_type().name()?;
    Err(PyTypeError::new_err(format!("a setting is a {kind}; it must be a bool, a number, a str or a list of them")))
}

/// Settings over one another: those given, by their names.
fn layers(given: &Bound<'_, PyDict>) -> PyResult<Layers> {
    let mut layers = Layers::default();
    for (key, given) in given {
        let key: String = key.extract().map_err(|_| PyTypeError::new_err("the name of a setting must be a str"))?;
        layers.add(&key, value(&given)?, "settings".into());
    }
    Ok(layers)
}

/// An environment whose worker processes end with it.
pub(crate) struct Opened(Entry);

impl Deref for Opened {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.batches().into_iter().for_each(|batches| batches.close());
    }
}

/// Opens the environment of a run.
///
/// Code of somebody's choice is executed only if the caller trusts it.
pub(crate) fn open_saved(path: &std::path::Path, best: bool, trust: bool, python: PathBuf) -> PyResult<Opened> {
    let config = checkpoint::config(path, best).map_err(raised)?;
    open_trusted(&config, path, trust, python)
}

fn open_trusted(config: &Config, path: &std::path::Path, trust: bool, python: PathBuf) -> PyResult<Opened> {
    if config.env.is_code() && !trust {
        return Err(bad(format!("{} would execute {}; if you trust it, pass trust=True", path.display(), config.env.name)));
    }
    open_env(&config.env, &[], &options(python)).map(Opened).map_err(raised)
}

fn options(python: PathBuf) -> WorkerOptions {
    WorkerOptions { python: Some(python), ..WorkerOptions::default() }
}

/// A training that is ready to run, with the directory that it writes.
struct Ready {
    config: Config,
    dir: RunDir,
    training: Training,
    /// After the training, which has its environments.
    entry: Opened,
    notes: Vec<String>,
}

/// Runs a training on a thread of its own.
///
/// Python's thread handles signals and calls `listener(kind, values)`, which ends the training by returning False or raising.
/// If it has a `callback`, the training waits for it.
fn run(
    py: Python<'_>,
    listener: &Bound<'_, PyAny>,
    begin: impl FnOnce() -> PyResult<Ready> + Send + 'static,
) -> PyResult<Py<PyDict>> {
    let _trains = match TRAINS.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(PyRuntimeError::new_err("another thread of this process is training; use a process for each"));
        }
    };
    interrupt::clear();
    let waits = !listener.getattr("callback")?.is_none();
    let (tell, told) = unbounded();
    let work = move || {
        let Ready { config, dir, mut training, entry, notes } = begin()?;
        let (path, env, algo) = (dir.path().to_path_buf(), entry.name.into(), config.algo.name().into());
        send(&tell, Told::Begun { path: path.clone(), env, algo, steps: config.run.steps });
        notes.into_iter().chain(config.warnings(&entry)).for_each(|note| send(&tell, Told::Warning(note)));
        let outcome = training.run(&dir, &mut |event| match event {
            Event::Row { row, .. } => {
                let (answer, answered) = bounded(0);
                send(&tell, Told::Row(row.values.clone(), waits.then_some(answer)));
                // The sender is dropped once the callback has returned.
                let _ = answered.recv();
            }
            Event::Evaluation { env_steps, result } => send(&tell, Told::Evaluation { env_steps, result: *result }),
            Event::Warning(text) => send(&tell, Told::Warning(text.into())),
            _ => {}
        });
        drop(training);
        drop(entry);
        Ok::<_, PyErr>((path, outcome.map_err(raised)?))
    };
    let trainer = thread::Builder::new().name("training".into()).spawn(work)?;
    let stopped = listen(py, listener, &told);
    let ended = py.detach(|| trainer.join());
    interrupt::clear();
    let panicked = |_| PyRuntimeError::new_err("the training has panicked, which is a bug; the message is on stderr");
    let (path, outcome) = ended.map_err(panicked)??;
    stopped?;
    describe(py, &path, &outcome)
}

/// Sends; a receiver that is gone has an error of its own.
fn send(tell: &Sender<Told>, told: Told) {
    let _ = tell.send(told);
}

/// Tells the listener everything until the training ends.
///
/// After an error of its own, or a signal that raises one, the training is asked to save and end.
fn listen(py: Python<'_>, listener: &Bound<'_, PyAny>, told: &Receiver<Told>) -> PyResult<()> {
    let mut stopped = Ok(());
    loop {
        let next = py.detach(|| told.recv_timeout(SIGNALS));
        let heard = match next {
            Err(RecvTimeoutError::Disconnected) => return stopped,
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(_) if stopped.is_err() => Ok(()),
            Ok(told) => call(py, listener, told),
        };
        if let Err(error) = heard.and_then(|()| py.check_signals()) {
            interrupt::request();
            if stopped.is_ok() || error.is_instance_of::<PyKeyboardInterrupt>(py) {
                stopped = Err(error);
            }
        }
    }
}

fn call(py: Python<'_>, listener: &Bound<'_, PyAny>, told: Told) -> PyResult<()> {
    let (values, mut waits) = (PyDict::new(py), None);
    let kind = match told {
        Told::Begun { path, env, algo, steps } => {
            values.set_item("path", path)?;
            values.set_item("env", env)?;
            values.set_item("algo", algo)?;
            values.set_item("steps", steps)?;
            "begun"
        }
        Told::Row(row, answer) => {
            waits = answer;
            row.into_iter().try_for_each(|(name, value)| values.set_item(name, value))?;
            "metrics"
        }
        Told::Evaluation { env_steps, result } => {
            values.set_item("env_steps", env_steps)?;
            set_evaluation(&values, &result)?;
            "evaluation"
        }
        Told::Warning(text) => {
            values.set_item("text", text)?;
            "warning"
        }
    };
    let answer = listener.call1((kind, values));
    let goes_on = answer.as_ref().is_ok_and(|answer| answer.extract::<bool>().unwrap_or(true));
    if !goes_on {
        interrupt::request();
    }
    drop(waits);
    answer.map(drop)
}

/// Works on a thread of its own, while Python's handles signals.
///
/// One that raises asks the work to end.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    // A training of another thread has the request.
    let clear = || TRAINS.try_lock().is_ok().then(interrupt::clear);
    clear();
    let (done, ended) = bounded::<()>(0);
    let work = move || {
        let _done = done;
        work()
    };
    let worker = thread::Builder::new().name(name.into()).spawn(work)?;
    let mut stopped = Ok(());
    while py.detach(|| ended.recv_timeout(SIGNALS)) == Err(RecvTimeoutError::Timeout) {
        if let Err(error) = py.check_signals() {
            interrupt::request();
            stopped = Err(error);
        }
    }
    let result = py.detach(|| worker.join());
    clear();
    stopped?;
    result.map_err(|_| PyRuntimeError::new_err(format!("the {name} has panicked, which is a bug; the message is on stderr")))?
}

fn set_evaluation(values: &Bound<'_, PyDict>, result: &Evaluation) -> PyResult<()> {
    values.set_item("episodes", result.episodes)?;
    values.set_item("cut", result.cut)?;
    values.set_item("return_mean", result.return_mean)?;
    values.set_item("return_std", result.return_std)?;
    values.set_item("length_mean", result.length_mean)
}

fn describe(py: Python<'_>, path: &std::path::Path, outcome: &Outcome) -> PyResult<Py<PyDict>> {
    let described = PyDict::new(py);
    let end = match outcome.end {
        End::Steps => "steps",
        End::Target => "target",
        End::Interrupted => "interrupted",
    };
    described.set_item("path", path)?;
    described.set_item("end", end)?;
    described.set_item("env_steps", outcome.progress.env_steps)?;
    described.set_item("wall_s", outcome.wall_s)?;
    let evaluation = outcome.evaluation.as_ref().map(|result| {
        let values = PyDict::new(py);
        set_evaluation(&values, result).map(|()| values)
    });
    described.set_item("evaluation", evaluation.transpose()?)?;
    Ok(described.unbind())
}

/// Trains a new run; returns how it has ended.
#[pyfunction]
pub(crate) fn train(
    py: Python<'_>,
    settings: &Bound<'_, PyDict>,
    run_dir: Option<PathBuf>,
    python: PathBuf,
    listener: &Bound<'_, PyAny>,
) -> PyResult<Py<PyDict>> {
    let layers = layers(settings)?;
    run(py, listener, move || begin(layers, run_dir, python).map_err(raised))
}

fn begin(layers: Layers, run_dir: Option<PathBuf>, python: PathBuf) -> Result<Ready, Error> {
    let env: EnvConfig = layers.env()?.ok_or_else(|| Error::config("no environment is given"))?;
    let algo = layers.text("algo")?.map_or(Ok(Algo::default()), |name| Algo::find(&name))?;
    let entry = Opened(open_env(&env, &[], &options(python))?);
    let config = layers.resolve(&entry, algo)?;
    let device = describe_device(&config, &entry, None)?;
    Budget::training(&config, &entry).check()?;
    let dir = RunDir::create(run_dir.as_deref(), &config, &device)?;
    match Training::builder(&config, &entry).build() {
        Ok(training) => Ok(Ready { config, dir, training, entry, notes: Vec::new() }),
        Err(error) => {
            dir.discard();
            Err(error)
        }
    }
}

/// Continues a run, or one of its checkpoints in a new run.
#[pyfunction]
pub(crate) fn resume(
    py: Python<'_>,
    path: PathBuf,
    settings: &Bound<'_, PyDict>,
    run_dir: Option<PathBuf>,
    trust: bool,
    python: PathBuf,
    listener: &Bound<'_, PyAny>,
) -> PyResult<Py<PyDict>> {
    let layers = layers(settings)?;
    run(py, listener, move || {
        let source = Source::open(&path, run_dir.is_some()).map_err(raised)?;
        let entry = open_trusted(source.config(), &path, trust, python)?;
        let continued = move || {
            let config = layers.over(source.config(), &entry)?;
            let differences = config.differences(source.config());
            if !differences.is_empty() {
                return Err(Error::config(format!("a resumed run keeps its settings (given here, saved there):{differences}")));
            }
            let device = describe_device(&config, &entry, None)?;
            let Resumed { dir, training, notes } =
                source.begin(&config, &entry, run_dir.as_deref(), &device, Profile::new(false), None)?;
            dir.replace_config(&config)?;
            Ok(Ready { config, dir, training, entry, notes })
        };
        continued().map_err(raised)
    })
}

/// Plays episodes, as `rl eval` does.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn evaluate(
    py: Python<'_>,
    path: PathBuf,
    best: bool,
    episodes: usize,
    seed: u64,
    stochastic: bool,
    threads: usize,
    trust: bool,
    python: PathBuf,
) -> PyResult<Py<PyDict>> {
    if !(1..=1_000_000).contains(&episodes) {
        return Err(bad(format!("episodes is {episodes}; it must be a whole number from 1 to 1000000")));
    }
    let result = interruptible(py, "evaluation", move || {
        let entry = open_saved(&path, best, trust, python)?;
        let played = || {
            let saved = checkpoint::policy(&path, best, &entry)?;
            let run = &saved.config.run;
            let config = EvalConfig {
                seed: evaluation_seed(seed),
                stochastic,
                max_steps: run.eval_max_steps,
                on_nonfinite: run.on_nonfinite,
            };
            evaluate_policy(&*saved.policy, &saved.entry, episodes, &config, &Pool::new(threads)?)
        };
        played().map_err(raised)
    })?;
    let values = PyDict::new(py);
    let result = result.ok_or_else(|| PyRuntimeError::new_err("the evaluation was interrupted"))?;
    set_evaluation(&values, &result)?;
    Ok(values.unbind())
}

/// Exports a policy, as `rl export` does; returns a dict about it, and notes.
#[pyfunction]
pub(crate) fn export(
    py: Python<'_>,
    path: PathBuf,
    best: bool,
    form: &str,
    out: Option<PathBuf>,
    trust: bool,
    python: PathBuf,
) -> PyResult<(Py<PyDict>, Vec<String>)> {
    let form = match form {
        "onnx" => Export::Onnx,
        "c" => Export::C,
        "rust" => Export::Rust,
        _ => return Err(bad(format!("form is {form:?}; it must be \"onnx\", \"c\" or \"rust\""))),
    };
    let report = interruptible(py, "export", move || {
        if let Some(out) = &out {
            form.check_name(out).map_err(raised)?;
        }
        let entry = open_saved(&path, best, trust, python)?;
        let exported = checkpoint::policy(&path, best, &entry).and_then(|saved| checkpoint::export(&saved, form, out.as_deref()));
        exported.map_err(raised)
    })?;
    let values = PyDict::new(py);
    values.set_item("files", report.files.iter().map(|(file, _)| file.display().to_string()).collect::<Vec<_>>())?;
    values.set_item("bytes", report.files.iter().map(|(_, n)| *n).collect::<Vec<_>>())?;
    values.set_item("weights_bytes", report.weights_bytes)?;
    values.set_item("memory_bytes", report.memory_bytes)?;
    values.set_item("multiply_adds", report.multiply_adds)?;
    values.set_item("checked", report.n_checked)?;
    values.set_item("differing", report.n_differing)?;
    Ok((values.unbind(), report.notes))
}

/// Returns the text of `rl list`'s settings: name, kind and description of each.
#[pyfunction]
pub(crate) fn settings() -> Vec<(&'static str, String, &'static str)> {
    rl_runtime::config::keys().map(|key| (key.name, key.kind.allowed(), key.doc)).collect()
}

/// Runs the `rl` program with arguments; returns its exit code.
///
/// `command` is what it starts for a process of itself.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, command: Vec<OsString>, args: Vec<OsString>) -> u8 {
    let code = py.detach(|| rl_runtime::cli::run(command, args, &[], &[]));
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}
