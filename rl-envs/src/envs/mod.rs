//! The environments, one file each; the games of MinAtar in a folder.

pub mod acrobot;
pub mod cartpole;
pub mod grid_world;
pub mod minatar;
pub mod mountain_car;
pub mod mountain_car_continuous;
pub mod pendulum;
pub mod repeat_first;
pub mod snake;

pub use minatar::{asterix, breakout, freeway, seaquest, space_invaders};
