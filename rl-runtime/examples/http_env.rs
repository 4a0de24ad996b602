//! An environment behind HTTP, in the whole `rl` program.
//!
//! `cargo run --release --example http_env -- train line --steps 20000 --set ppo.n_steps=32 --set ppo.batch_size=64`
//!
//! The server here stands for any service. It plays a walk on a line: start in the middle, step left or right, win 1 at the right
//! end. `GET /reset` and `GET /step/A` answer with position, reward and whether the episode is over.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::LazyLock;

use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, BlockingEnv, EnvError, Rng, Space, Step};

/// Address of the server, which the first call starts.
///
/// The program's `main` has to be the only thread at first.
static SERVER: LazyLock<String> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound port").to_string();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(|| serve(stream)))));
    address
});

/// Serves one environment on a connection.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    let (mut requests, mut out, mut place) = (BufReader::new(stream.try_clone()?).lines(), stream, 0i32);
    while let Some(request) = requests.next().transpose()? {
        let path = request.split(' ').nth(1).unwrap_or_default();
        place = if path == "/reset" { 0 } else { place + if path == "/step/1" { 1 } else { -1 } };
        while requests.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
        let body = format!("{place} {} {}", i32::from(place == 5), place.abs() == 5);
        out.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    }
    Ok(())
}

/// The client: an environment that blocks.
#[derive(Default)]
struct Line {
    connection: Option<BufReader<TcpStream>>,
}

impl Line {
    fn get(&mut self, path: &str) -> std::io::Result<(f32, Step)> {
        let stream = match &mut self.connection {
            Some(stream) => stream,
            None => self.connection.insert(BufReader::new(TcpStream::connect(&**SERVER)?)),
        };
        stream.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line)?;
            length = line.strip_prefix("Content-Length: ").and_then(|n| n.trim().parse().ok()).unwrap_or(length);
        }
        let mut body = vec![0; length];
        std::io::Read::read_exact(stream, &mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let words: Vec<&str> = body.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse().ok()).unwrap_or(f32::NAN);
        Ok((number(0), Step { reward: number(1), terminated: words.get(2) == Some(&"true"), truncated: false }))
    }

    fn call(&mut self, path: &str, obs: &mut [f32]) -> Result<Step, EnvError> {
        let answer = self.get(path);
        if answer.is_err() {
            self.connection = None; // the next episode connects again
        }
        let (place, step) = answer.map_err(|error| EnvError { cause: format!("{path}: {error}"), may_repeat: false })?;
        obs[0] = place;
        Ok(step)
    }
}

impl BlockingEnv for Line {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        Space::vector(&[-5.0], &[5.0])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.call("/reset", obs).map(drop)
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.call(&format!("/step/{}", action.discrete()), obs)
    }
}

fn main() -> ExitCode {
    rl_runtime::cli::main(&[Entry::blocking::<Line>("line", "reach the right end of a line, over HTTP")], &[])
}
