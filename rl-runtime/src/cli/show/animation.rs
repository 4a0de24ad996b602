//! An animated GIF, complete or absent.
//!
//! Frames are compressed as they come, with one palette for the whole file, and hold only the rectangle that has changed. From
//! the 257th colour on, a frame with new colours has its own palette (NeuQuant's, if its rectangle alone has more than 256).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use gif::{Encoder, EncodingError, Frame, Repeat};
use rl_envs::{Canvas, Color};

use crate::Error;
use crate::file::Draft;

/// Maximum number of frames in an animation; later ones are dropped.
pub(crate) const MAX_FRAMES: usize = 1000;

/// Duration of the last frame of an episode, in hundredths of a second.
const DWELL: u16 = 100;

/// An unfinished animation; dropped before [`Animation::finish`], leaves no file.
#[derive(Debug)]
pub(crate) struct Animation {
    draft: Draft,
    fps: u32,
    width: usize,
    height: usize,
    /// Previous picture, (H, W, 3).
    last: Vec<u8>,
    palette: Vec<u8>,
    index: HashMap<Color, u8>,
    /// Compressed frames.
    frames: Vec<Frame<'static>>,
    /// Number of pictures that are no frames.
    left_out: usize,
}

impl Animation {
    /// Starts an animation for the file `path`, with `fps` frames a second (1 to 100).
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub(crate) fn create(path: &Path, fps: u32) -> Result<Self, Error> {
        Ok(Self {
            draft: Draft::create(path)?,
            fps,
            width: 0,
            height: 0,
            last: Vec::new(),
            palette: Vec::new(),
            index: HashMap::new(),
            frames: Vec::new(),
            left_out: 0,
        })
    }

    /// Number of frames.
    #[must_use]
    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Number of pictures that do not fit the first one.
    #[must_use]
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Width and height in pixels; 0 before the first frame.
    #[must_use]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Appends a frame, unless there are [`MAX_FRAMES`] already.
    ///
    /// Counts a picture that is empty, larger than 65,535 pixels or of another size than the first one, and leaves it out.
    pub(crate) fn push(&mut self, canvas: &Canvas) {
        let i = self.frames.len() as u32;
        if self.frames.len() == MAX_FRAMES {
            return;
        }
        let size = (canvas.width(), canvas.height());
        let is_odd = if i == 0 { canvas.width().max(canvas.height()) > usize::from(u16::MAX) } else { self.size() != size };
        if canvas.is_empty() || is_odd {
            self.left_out += 1;
            return;
        }
        (self.width, self.height) = size;
        let (columns, rows) = self.changed(canvas.pixels());
        let row = |row: usize| &canvas.pixels()[(row * self.width + columns.start) * 3..][..columns.len() * 3];
        let pixels: Vec<u8> = rows.clone().flat_map(row).copied().collect();
        let (width, height) = (columns.len() as u16, rows.len() as u16);
        let mut frame = match self.indices(&pixels) {
            Some(indices) => Frame::from_indexed_pixels(width, height, indices, None),
            None => Frame::from_rgb_speed(width, height, &pixels, 10),
        };
        frame.make_lzw_pre_encoded();
        (frame.left, frame.top) = (columns.start as u16, rows.start as u16);
        // Rounding errors do not add up: the next frame makes up for this one's.
        frame.delay = ((i + 1) * 100 / self.fps - i * 100 / self.fps) as u16;
        self.frames.push(frame);
        self.last.clear();
        self.last.extend_from_slice(canvas.pixels());
    }

    /// Extends the last frame to a second.
    pub(crate) fn dwell(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.delay = frame.delay.max(DWELL);
        }
    }

    /// Writes the file, which loops, and returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written; an existing file is unharmed then.
    pub(crate) fn finish(self) -> Result<usize, Error> {
        let encode = || -> Result<Vec<u8>, EncodingError> {
            let mut encoder = Encoder::new(Vec::new(), self.width as u16, self.height as u16, &self.palette)?;
            encoder.set_repeat(Repeat::Infinite)?;
            self.frames.iter().try_for_each(|frame| encoder.write_lzw_pre_encoded_frame(frame))?;
            encoder.into_inner()
        };
        let bytes = encode().map_err(|error| Error::io(self.draft.target())(io::Error::other(error)))?;
        self.draft.publish(&bytes)?;
        Ok(bytes.len())
    }

    /// Returns the smallest rectangle (columns, rows) with all changes, or one pixel.
    fn changed(&self, pixels: &[u8]) -> (Range<usize>, Range<usize>) {
        if self.frames.is_empty() {
            return (0..self.width, 0..self.height);
        }
        let (mut columns, mut rows) = (self.width..0, self.height..0);
        let line = self.width * 3;
        for (row, (old, new)) in self.last.chunks_exact(line).zip(pixels.chunks_exact(line)).enumerate() {
            let differs = |(old, new): (&u8, &u8)| old != new;
            let Some(first) = old.iter().zip(new).position(differs) else { continue };
            let last = old.iter().zip(new).rposition(differs).unwrap_or(first);
            columns = columns.start.min(first / 3)..columns.end.max(last / 3 + 1);
            rows = rows.start.min(row)..row + 1;
        }
        if rows.is_empty() { (0..1, 0..1) } else { (columns, rows) }
    }

    /// Returns each pixel's index in the common palette; `None` if the palette is full.
    ///
    /// Adds new colours to the palette.
    fn indices(&mut self, pixels: &[u8]) -> Option<Vec<u8>> {
        let mut indices = Vec::with_capacity(pixels.len() / 3);
        let mut before = None;
        for pixel in pixels.chunks_exact(3) {
            let color = [pixel[0], pixel[1], pixel[2]];
            let index = match (before, self.index.get(&color)) {
                (Some((same, index)), _) if same == color => index,
                (_, Some(index)) => *index,
                (_, None) => {
                    let index = u8::try_from(self.index.len()).ok()?;
                    self.index.insert(color, index);
                    self.palette.extend(color);
                    index
                }
            };
            before = Some((color, index));
            indices.push(index);
        }
        Some(indices)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// Returns the frames of a GIF file as displayed, (H, W, 3) each, and their delays.
    fn decode(path: &Path) -> (Vec<Vec<u8>>, Vec<u16>) {
        let mut options = gif::DecodeOptions::new();
        options.set_color_output(gif::ColorOutput::RGBA);
        let mut decoder = options.read_info(File::open(path).unwrap()).unwrap();
        let width = usize::from(decoder.width());
        let mut seen = vec![0; width * usize::from(decoder.height()) * 3];
        let (mut frames, mut delays) = (Vec::new(), Vec::new());
        while let Some(frame) = decoder.read_next_frame().unwrap() {
            for (i, pixel) in frame.buffer.chunks_exact(4).enumerate() {
                let (x, y) = (i % usize::from(frame.width), i / usize::from(frame.width));
                let at = (y + usize::from(frame.top)) * width + x + usize::from(frame.left);
                seen[at * 3..at * 3 + 3].copy_from_slice(&pixel[..3]);
            }
            frames.push(seen.clone());
            delays.push(frame.delay);
        }
        (frames, delays)
    }

    fn gradient(shift: usize) -> Canvas {
        let mut canvas = Canvas::new(40, 10);
        canvas.view(0.0..40.0, 0.0..10.0, [0; 3]);
        for i in 0..40 {
            let color = [(i * 6) as u8, (shift * 16) as u8, 7];
            canvas.rect(i as f32..i as f32 + 1.0, 0.0..5.0, color);
        }
        canvas
    }

    #[test]
    fn a_picture_that_is_empty_or_of_another_size_is_left_out_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("odd.gif");
        let mut animation = Animation::create(&path, 10).unwrap();
        let empty = Canvas::new(0, 0);
        let mut wide = Canvas::new(16, 16);
        wide.picture(2, 1, &[0; 6]);
        for picture in [&empty, &gradient(0), &empty, &wide, &gradient(1)] {
            animation.push(picture);
        }
        assert_eq!((animation.frames(), animation.left_out()), (2, 3));
        animation.finish().unwrap();
    }

    #[test]
    fn what_is_written_is_what_was_drawn_with_few_colours_and_with_many() {
        let dir = tempfile::tempdir().unwrap();
        for n in [1, 3, 16] {
            let path = dir.path().join("a.gif");
            let mut animation = Animation::create(&path, 30).unwrap();
            // 40 colours more with each picture, so that 16 of them overflow the palette; each twice.
            let pictures: Vec<Canvas> = (0..n).flat_map(|i| [gradient(i), gradient(i)]).collect();
            pictures.iter().for_each(|picture| animation.push(picture));
            animation.dwell();
            assert_eq!((animation.frames(), animation.size()), (2 * n, (40, 10)));
            let bytes = animation.finish().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), bytes as u64);
            let (frames, delays) = decode(&path);
            assert!(frames.iter().zip(&pictures).all(|(frame, picture)| frame == picture.pixels()), "{n}");
            // 100 / 30 = 3.33 hundredths.
            assert!([3, 3, 4].iter().cycle().zip(&delays[..2 * n - 1]).all(|(a, b)| a == b), "{delays:?}");
            assert_eq!((frames.len(), delays[2 * n - 1]), (2 * n, 100));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn an_animation_keeps_the_first_frames_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gif");
        let mut animation = Animation::create(&path, 50).unwrap();
        (0..MAX_FRAMES + 5).for_each(|i| animation.push(&gradient(i % 2)));
        animation.finish().unwrap();
        assert_eq!(decode(&path).0.len(), MAX_FRAMES);
    }

    #[test]
    fn until_it_is_finished_the_old_file_stays_and_a_dropped_one_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gif");
        fs::write(&path, "old").unwrap();
        let mut animation = Animation::create(&path, 30).unwrap();
        animation.push(&gradient(0));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(animation);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(Animation::create(dir.path(), 30).is_err(), "a directory");
    }
}
