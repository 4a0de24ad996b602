//! Signals: INT, TERM, HUP and USR1 ask the run to save and stop; a second one ends the program at once.
//!
//! A HUP that the program was started to ignore, as by `nohup`, stays ignored; Linux tells so in /proc, elsewhere HUP is always handled.
//! All other signals keep their defaults.

use crate::{interrupt, print};

/// The exit code after a second signal, when nothing has been saved since the last checkpoint.
const EXIT_CODE_AT_ONCE: u8 = 131;

/// Starts to listen. `restore` gives a terminal back; it is called before the program ends at once, and then QUIT, too, waits for it.
///
/// # Errors
/// What the system said.
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

/// Starts to listen, where the system can.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub(super) fn listen(_restore: Option<fn()>) -> Result<(), String> {
    Err("signals are handled on Unix only".into())
}

/// Ends the program.
#[cfg(unix)]
fn leave(restore: Option<fn()>) -> ! {
    let (done, printed) = std::sync::mpsc::channel();
    // On a thread of its own: a pipe or a terminal that takes nothing more must not hold the program.
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
