//! The terminal's alternate screen, left whatever ends the program.
//!
//! Lines of [`print`] are held back while it is open, and printed after it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rl_agents::catches_panics;

use crate::print;

/// True while a [`FullScreen`] owns the terminal.
static OPEN: AtomicBool = AtomicBool::new(false);
/// True from [`suspend`] to [`reopen`], if the screen was open.
static SUSPENDED: AtomicBool = AtomicBool::new(false);
/// True if the screen lost its picture.
static CLEARED: AtomicBool = AtomicBool::new(false);

const OPENED: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";

/// The alternate screen, open until it is dropped.
///
/// The former content, including the cursor, returns on drop, on a panic, and with [`restore`].
#[derive(Debug)]
pub(crate) struct FullScreen(());

impl FullScreen {
    /// True if stdout is a terminal that can show pictures.
    pub(crate) fn is_possible() -> bool {
        io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    /// Opens the screen.
    pub(crate) fn open() -> Self {
        let panicked = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !catches_panics() {
                // First, so that the message stays readable.
                restore();
            }
            panicked(panic);
        }));
        OPEN.store(true, Ordering::Relaxed);
        print::hold();
        print::raw(OPENED);
        Self(())
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        SUSPENDED.store(false, Ordering::Relaxed);
        restore();
    }
}

/// Restores the terminal; pictures are no longer shown.
pub(crate) fn restore() {
    // Locked, so that no picture is written in between.
    let _stdout = io::stdout().lock();
    if OPEN.swap(false, Ordering::Relaxed) {
        print::raw("\x1b[0m\x1b[?25h\x1b[?1049l");
        print::release();
    }
}

/// Restores the terminal until [`reopen`].
pub(crate) fn suspend() {
    SUSPENDED.store(OPEN.load(Ordering::Relaxed), Ordering::Relaxed);
    restore();
}

/// Opens the screen again, if [`suspend`] has closed it.
pub(crate) fn reopen() {
    let _stdout = io::stdout().lock();
    if SUSPENDED.swap(false, Ordering::Relaxed) {
        OPEN.store(true, Ordering::Relaxed);
        CLEARED.store(true, Ordering::Relaxed);
        print::hold();
        print::raw(OPENED);
    }
}

/// True if the screen has lost its picture since the last call.
pub(crate) fn was_cleared() -> bool {
    CLEARED.swap(false, Ordering::Relaxed)
}

/// Writes a picture, unless the screen is closed.
pub(crate) fn show(picture: &str) {
    let _stdout = io::stdout().lock();
    if OPEN.load(Ordering::Relaxed) {
        print::raw(picture);
    }
}

/// Largest picture in columns and rows, more than any screen shows.
///
/// A terminal may report 65,535 of each, and a picture takes about 80 bytes for each character.
const LARGEST: (u16, u16) = (1000, 500);

/// Columns and rows of the terminal, as far as pictures go.
pub(crate) fn size() -> (u16, u16) {
    let (rows, columns) = console::Term::stdout().size();
    (columns.min(LARGEST.0), rows.min(LARGEST.1))
}

/// Ratatui's way to the screen, in place of crossterm.
///
/// It reads no keys, so that Ctrl-C stays a signal.
#[derive(Debug)]
pub(crate) struct Ansi {
    colors: bool,
    /// Changes since the last flush.
    text: String,
}

impl Ansi {
    /// Creates a backend, without colours if `NO_COLOR` is set.
    pub(crate) fn new() -> Self {
        Self { colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()), text: String::new() }
    }

    /// Appends the sequence that selects a style.
    fn style(&mut self, cell: &Cell) {
        self.text.push_str("\x1b[0");
        for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
            if cell.modifier.contains(modifier) {
                self.text.push_str(code);
            }
        }
        let code = match cell.fg {
            Color::Red => ";31",
            Color::Green => ";32",
            Color::Yellow => ";33",
            Color::Cyan => ";36",
            _ => "",
        };
        self.text.push_str(if self.colors { code } else { "" });
        self.text.push('m');
    }
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        let (mut next, mut style) = (None, None);
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                // Writing to a string cannot fail.
                let _ = write!(self.text, "\x1b[{};{}H", y + 1, x + 1);
            }
            if style != Some((cell.fg, cell.modifier)) {
                self.style(cell);
                style = Some((cell.fg, cell.modifier));
            }
            self.text.push_str(cell.symbol());
            next = Some((x + 1, y));
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, _: P) -> io::Result<()> {
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[0m\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        Ok(size().into())
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::default() })
    }

    fn flush(&mut self) -> io::Result<()> {
        show(&std::mem::take(&mut self.text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn neighbours_are_written_without_moves_and_colours_only_on_request() {
        let red = {
            let mut cell = Cell::new("a");
            cell.set_style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
            cell
        };
        let plain = Cell::new("b");
        let written = |colors| {
            let mut ansi = Ansi { colors, text: String::new() };
            ansi.draw([(3, 1, &red), (4, 1, &red), (5, 1, &plain), (0, 2, &plain)].into_iter()).unwrap();
            ansi.text
        };
        assert_eq!(written(true), "\x1b[2;4H\x1b[0;1;31maa\x1b[0mb\x1b[3;1Hb");
        assert_eq!(written(false), "\x1b[2;4H\x1b[0;1maa\x1b[0mb\x1b[3;1Hb");
    }
}
