//! Signals: INT, TERM, HUP and USR1 ask the run to save and stop.
//!
//! A second signal ends the program at once.
//!
//! A HUP that the program was started to ignore, as by `nohup`, stays ignored; Linux reports that in /proc, elsewhere HUP is
//! always handled. All other signals keep their defaults.

use crate::{interrupt, print};

/// Exit code after a second signal: nothing saved since the last checkpoint.
const EXIT_CODE_AT_ONCE: u8 = 131;

/// Starts to listen for signals.
///
/// `restore` restores a terminal; the program calls it before it ends at once, for QUIT too.
///
/// # Errors
/// The operating system's message.
#[cfg(unix)]
pub(super) fn listen(restore: Option<fn()>) -> Result<(), String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
    let listened = [(SIGINT, true), (SIGTERM, true), (SIGUSR1, true), (SIGHUP, !ignored(SIGHUP)), (SIGQUIT, restore.is_some())];
    let listened = listened.into_iter().filter_map(|(signal, listen)| listen.then_some(signal));
    let mut signals = signal_hook::iterator::Signals::new(listened).map_err(|error| error.to_string())?;
    let work = move || {
        let mut first = true;
        for signal in signals.forever() {
            if signal == SIGQUIT {
                restore.inspect(|restore| restore());
                let _ = signal_hook::low_level::emulate_default_handler(SIGQUIT);
            }
            interrupt::request();
            if !std::mem::take(&mut first) {
                leave(restore);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(work).map(drop).map_err(|error| error.to_string())
}

/// Starts to listen for signals, where the system can.
///
/// # Errors
/// Always, with a message.
#[cfg(not(unix))]
pub(super) fn listen(_restore: Option<fn()>) -> Result<(), String> {
    Err("signals are handled on Unix only".into())
}

/// Ends the program.
#[cfg(unix)]
fn leave(restore: Option<fn()>) -> ! {
    let (done, printed) = std::sync::mpsc::channel();
    // On a separate thread: a pipe or terminal that accepts no more output must not block the exit.
    std::thread::spawn(move || {
        restore.inspect(|restore| restore());
        print::err("interrupted twice, ended at once: nothing was saved since the last checkpoint");
        let _ = done.send(());
    });
    let _ = printed.recv_timeout(std::time::Duration::from_secs(1));
    std::process::exit(EXIT_CODE_AT_ONCE.into())
}

/// True if the program was started to ignore the signal.
#[cfg(unix)]
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
