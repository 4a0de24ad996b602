//! The environments, one file each, and what games of MinAtar share.

pub mod acrobot;
pub mod asterix;
pub mod breakout;
pub mod cartpole;
pub mod freeway;
pub mod minatar;
pub mod mountain_car;
pub mod mountain_car_continuous;
pub mod pendulum;
pub mod repeat_first;
pub mod seaquest;
pub mod snake;
pub mod space_invaders;
