//! RGB picture that an environment draws itself into, with a few shapes.
//!
//! An environment chooses the visible part of its plane with [`Canvas::view`], y pointing up, and then draws in its own units at
//! any size in pixels. Edges are smoothed by the distance of a pixel's centre, in few shades, so that a whole animation fits the
//! 256 colours of a GIF. The same shapes give the same bytes on every machine.

use std::ops::Range;

/// Red, green, blue.
pub type Color = [u8; 3];

/// Number of steps from one colour to the other that a pixel on an edge may take.
const SHADES: f32 = 4.0;

/// An RGB picture, empty until an environment chooses a view.
#[derive(Clone, Debug, PartialEq)]
pub struct Canvas {
    room: [usize; 2],
    width: usize,
    height: usize,
    pixels: Vec<u8>, // (H, W, 3), the top row first
    /// Pixels per unit of the scene.
    scale: f32,
    /// Coordinates of the left edge and of the top.
    corner: [f32; 2],
}

impl Canvas {
    /// Creates an empty canvas; a view is at most this large, in pixels.
    #[must_use]
    pub fn new(max_width: usize, max_height: usize) -> Self {
        Self { room: [max_width, max_height], width: 0, height: 0, pixels: Vec::new(), scale: 1.0, corner: [0.0; 2] }
    }

    /// Starts a picture of this part of the scene, filled with `background`.
    ///
    /// The picture gets the largest size that fits the canvas and has the scene's proportions.
    ///
    /// # Panics
    /// If a range is empty or not finite.
    pub fn view(&mut self, x: Range<f32>, y: Range<f32>, background: Color) {
        let size = [x.end - x.start, y.end - y.start];
        assert!(size.iter().all(|s| s.is_finite() && *s > 0.0), "{x:?} times {y:?} cannot be seen");
        self.scale = (self.room[0] as f32 / size[0]).min(self.room[1] as f32 / size[1]);
        [self.width, self.height] = [0, 1].map(|axis| ((size[axis] * self.scale).round() as usize).max(1).min(self.room[axis]));
        self.corner = [x.start, y.end];
        self.pixels.clear();
        self.pixels.resize(self.width * self.height * 3, 0);
        self.fill(background);
    }

    /// Shows a picture, (height, width, 3), scaled down if it does not fit the canvas.
    ///
    /// Each pixel is the picture's at the pixel's centre.
    ///
    /// # Panics
    /// If the picture is empty or `pixels` is not its length.
    pub fn picture(&mut self, width: usize, height: usize, pixels: &[u8]) {
        assert!(width > 0 && pixels.len() == width * height * 3, "a picture of {width} by {height} pixels");
        let scale = [(self.room[0], width), (self.room[1], height)].map(|(room, size)| room as f32 / size as f32);
        let scale = scale[0].min(scale[1]).min(1.0);
        self.view(0.0..width as f32, 0.0..height as f32, [0; 3]);
        self.scale = scale;
        [self.width, self.height] = [width, height].map(|size| ((size as f32 * scale).round() as usize).max(1));
        self.pixels.clear();
        for row in 0..self.height {
            let from = ((2 * row + 1) * height / (2 * self.height)) * width;
            for column in 0..self.width {
                let at = 3 * (from + (2 * column + 1) * width / (2 * self.width));
                self.pixels.extend_from_slice(&pixels[at..at + 3]);
            }
        }
    }

    /// Width in pixels.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    #[must_use]
    pub fn height(&self) -> usize {
        self.height
    }

    /// True if nothing has been drawn, as when an environment does not draw itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pixels.is_empty()
    }

    /// All bytes, (H, W, 3), top row first.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the colour of a pixel, counted from the left and from the top.
    ///
    /// # Panics
    /// If the pixel is outside the picture.
    #[must_use]
    pub fn pixel(&self, column: usize, row: usize) -> Color {
        assert!(column < self.width && row < self.height, "no pixel ({column}, {row})");
        let at = (row * self.width + column) * 3;
        [self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]]
    }

    /// Fills the picture.
    pub fn fill(&mut self, color: Color) {
        self.pixels.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&color));
    }

    /// Shows square boards of 0 and 1, (P, side, side), the first on top.
    pub(crate) fn planes(&mut self, planes: &[u8], side: usize, colors: &[Color]) {
        self.view(0.0..side as f32, 0.0..side as f32, [250, 250, 247]);
        for (plane, color) in planes.chunks(side * side).zip(colors).rev() {
            for (i, _) in plane.iter().enumerate().filter(|(_, cell)| **cell == 1) {
                let (x, y) = ((i % side) as f32, (side - i / side) as f32);
                self.rect(x + 0.03..x + 0.97, y - 0.97..y - 0.03, *color);
            }
        }
    }

    /// Draws a rectangle along the axes.
    pub fn rect(&mut self, x: Range<f32>, y: Range<f32>, color: Color) {
        self.polygon(&[[x.start, y.start], [x.end, y.start], [x.end, y.end], [x.start, y.end]], color);
    }

    /// Draws a disc.
    pub fn disc(&mut self, center: [f32; 2], radius: f32, color: Color) {
        self.line(center, center, 2.0 * radius, color);
    }

    /// Draws a straight line with round ends.
    pub fn line(&mut self, from: [f32; 2], to: [f32; 2], width: f32, color: Color) {
        let ([ax, ay], [bx, by]) = (self.place(from), self.place(to));
        let (dx, dy, radius) = (bx - ax, by - ay, 0.5 * width * self.scale);
        let length_squared = dx * dx + dy * dy;
        self.paint(&[[ax, ay], [bx, by]], radius, color, |x, y| {
            let along = if length_squared > 0.0 { ((x - ax) * dx + (y - ay) * dy) / length_squared } else { 0.0 };
            let along = along.clamp(0.0, 1.0);
            let (off_x, off_y) = (x - ax - along * dx, y - ay - along * dy);
            (off_x * off_x + off_y * off_y).sqrt() - radius
        });
    }

    /// Draws a convex polygon, corners in either order; one without area is skipped.
    pub fn polygon(&mut self, corners: &[[f32; 2]], color: Color) {
        let corners: Vec<[f32; 2]> = corners.iter().map(|corner| self.place(*corner)).collect();
        let edges = || corners.iter().zip(corners.iter().cycle().skip(1));
        let area: f32 = edges().map(|(a, b)| a[0] * b[1] - b[0] * a[1]).sum();
        if !area.is_normal() {
            return;
        }
        // The distance to the edge that a point is farthest outside of: exact except at corners.
        let lines: Vec<[f32; 3]> = edges()
            .map(|(a, b)| {
                let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
                // Not hypot, whose result depends on the platform.
                let length = area.signum() * (dx * dx + dy * dy).sqrt();
                [dy / length, -dx / length, (dx * a[1] - dy * a[0]) / length]
            })
            .filter(|line| line.iter().all(|c| c.is_finite()))
            .collect();
        self.paint(&corners, 0.0, color, |x, y| {
            lines.iter().map(|[nx, ny, c]| nx * x + ny * y + c).fold(f32::NEG_INFINITY, f32::max)
        });
    }

    /// Converts a point of the scene to pixels from the left and from the top.
    fn place(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        [(x - self.corner[0]) * self.scale, (self.corner[1] - y) * self.scale]
    }

    /// Colours pixels near `points` by `distance` from a shape, negative inside.
    fn paint(&mut self, points: &[[f32; 2]], margin: f32, color: Color, distance: impl Fn(f32, f32) -> f32) {
        let [columns, rows] = [(0, self.width), (1, self.height)].map(|(axis, len)| {
            let (low, high) = points
                .iter()
                .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), point| (low.min(point[axis]), high.max(point[axis])));
            // A conversion to usize saturates at 0.
            (low - margin - 1.0) as usize..((high + margin + 2.0) as usize).min(len)
        });
        for row in rows {
            for column in columns.clone() {
                let cover = (0.5 - distance(column as f32 + 0.5, row as f32 + 0.5)).clamp(0.0, 1.0);
                let cover = (cover * SHADES).round() / SHADES;
                if cover > 0.0 {
                    let at = (row * self.width + column) * 3;
                    for (old, new) in self.pixels[at..at + 3].iter_mut().zip(color) {
                        let mixed = f32::from(*old) + (f32::from(new) - f32::from(*old)) * cover;
                        *old = (mixed + 0.5) as u8;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLACK: Color = [0; 3];
    const WHITE: Color = [255; 3];

    /// The first channel, a row a line.
    fn shades(canvas: &Canvas) -> Vec<Vec<u8>> {
        (0..canvas.height()).map(|row| (0..canvas.width()).map(|column| canvas.pixel(column, row)[0]).collect()).collect()
    }

    fn canvas(width: usize, height: usize) -> Canvas {
        let mut canvas = Canvas::new(width, height);
        canvas.view(0.0..width as f32, 0.0..height as f32, BLACK);
        canvas
    }

    #[test]
    fn a_view_keeps_the_scenes_proportions_within_the_room() {
        let mut canvas = Canvas::new(400, 300);
        assert!(canvas.is_empty());
        for (x, y, size) in [(0.0..6.0, -2.0..2.0, (400, 267)), (0.0..1.0, 0.0..2.0, (150, 300)), (0.0..1e6, 0.0..1.0, (400, 1))]
        {
            canvas.view(x, y, WHITE);
            assert_eq!((canvas.width(), canvas.height()), size);
            assert_eq!(canvas.pixels(), vec![255; size.0 * size.1 * 3]);
        }
        canvas.fill([1, 2, 3]);
        assert_eq!(canvas.pixel(399, 0), [1, 2, 3]);
    }

    #[test]
    fn y_points_up_and_whole_cells_have_sharp_edges() {
        let mut canvas = canvas(4, 3);
        canvas.rect(1.0..3.0, 0.0..1.0, WHITE);
        canvas.rect(0.0..1.0, 3.0..2.0, [9, 8, 7]);
        assert_eq!(shades(&canvas), [[9, 0, 0, 0], [0, 0, 0, 0], [0, 255, 255, 0]]);
        assert_eq!(canvas.pixel(0, 0), [9, 8, 7]);
    }

    #[test]
    fn what_is_drawn_over_a_picture_lies_where_its_pixels_are() {
        for room in [100, 40, 10] {
            let mut canvas = Canvas::new(room, room);
            canvas.picture(20, 20, &[0; 1200]);
            canvas.rect(0.0..10.0, 0.0..10.0, WHITE);
            let size = canvas.width();
            assert_eq!((size, canvas.pixel(0, size - 1), canvas.pixel(size - 1, 0)), (room.min(20), WHITE, BLACK), "{room}");
        }
    }

    #[test]
    fn half_covered_pixels_are_half_mixed() {
        let mut canvas = canvas(4, 1);
        canvas.rect(0.5..2.5, -1.0..2.0, WHITE);
        // 0 + 255 / 2 = 127.5, rounded up.
        assert_eq!(shades(&canvas), [[128, 255, 128, 0]]);
    }

    #[test]
    fn either_sense_of_rotation_draws_the_same_polygon() {
        let corners = [[1.0, 1.0], [7.0, 2.0], [4.0, 7.0]];
        let mut left = canvas(8, 8);
        left.polygon(&corners, WHITE);
        let mut right = canvas(8, 8);
        right.polygon(&[corners[2], corners[1], corners[0]], WHITE);
        assert_eq!(left, right);
        assert_eq!((left.pixel(4, 4), left.pixel(0, 0)), (WHITE, BLACK));
        right.polygon(&[corners[0], corners[1], corners[0]], [7; 3]);
        assert_eq!(left, right, "nothing without area");
    }

    #[test]
    fn discs_and_lines_cover_their_area() {
        let covered = |canvas: &Canvas| canvas.pixels().iter().map(|byte| f32::from(*byte)).sum::<f32>() / (3.0 * 255.0);
        let mut disc = canvas(65, 33);
        disc.disc([30.0, 16.0], 12.0, WHITE);
        let area = 144.0 * std::f32::consts::PI;
        assert!((covered(&disc) / area - 1.0).abs() < 0.02, "{} {area}", covered(&disc));
        let mut line = canvas(65, 33);
        line.line([10.0, 10.0], [50.0, 20.0], 6.0, WHITE);
        let area = 6.0 * 1700f32.sqrt() + 9.0 * std::f32::consts::PI;
        assert!((covered(&line) / area - 1.0).abs() < 0.02, "{} {area}", covered(&line));
    }

    #[test]
    fn what_lies_outside_or_is_not_a_number_draws_nothing() {
        let mut canvas = canvas(5, 5);
        let before = canvas.clone();
        canvas.disc([-20.0, 1e9], 3.0, WHITE);
        canvas.rect(6.5..1e30, 0.0..5.0, WHITE);
        canvas.line([f32::NAN, 1.0], [3.0, 3.0], 1.0, WHITE);
        canvas.polygon(&[[1.0, 1.0], [4.0, f32::NAN], [4.0, 4.0]], WHITE);
        canvas.polygon(&[], WHITE);
        assert_eq!(canvas, before);
    }

    #[test]
    fn an_edge_has_few_shades() {
        let mut canvas = canvas(64, 64);
        canvas.polygon(&[[3.1, 5.2], [60.3, 20.4], [50.5, 61.6], [9.7, 40.8]], WHITE);
        let mut all = canvas.pixels().to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, [0, 64, 128, 191, 255]);
    }
}
