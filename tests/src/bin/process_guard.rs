//! Guards one process: `process_guard DIRECTORY OUTPUT PROGRAM ARGUMENT…`
//!
//! Runs the program with its standard output appended to the file OUTPUT, its standard error passed on. Says on its own
//! standard output `started <pid>`, `stopped` and `continued` whenever that happens, and at the end `exited <code>` or
//! `killed <signal>`. When its standard input ends, because whoever started it let go or died of anything at all, the
//! program is killed and DIRECTORY removed, unless `keep` was the last word: then another guard has the directory.

use std::{
    env, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, setsid},
};

fn main() -> ExitCode {
    match hold() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("failed {error}"));
            ExitCode::FAILURE
        }
    }
}

fn hold() -> io::Result<()> {
    // In a session of its own an interrupt from the keyboard does not reach it, and neither does the hang-up that a process
    // group with a stopped member is sent when the process that started it dies.
    setsid()?;
    let usage =
        || io::Error::new(io::ErrorKind::InvalidInput, "usage: process_guard DIRECTORY OUTPUT PROGRAM ARGUMENT…");
    let mut arguments = env::args_os().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or_else(usage)?);
    let output = fs::File::options().create(true).append(true).open(arguments.next().ok_or_else(usage)?)?;
    let mut program = Command::new(arguments.next().ok_or_else(usage)?);
    let child = program.args(arguments).stdin(Stdio::null()).stdout(output).spawn()?;

    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    say(&format!("started {pid}"));
    let running = Arc::new(Mutex::new(Some(pid)));
    let end_of_input = thread::spawn({
        let running = running.clone();
        move || let_go_at_end_of_input(&running)
    });
    let ended = wait(pid)?;
    // From here on the pid can become another process's.
    running.lock().unwrap_or_else(PoisonError::into_inner).take();
    say(&ended);

    let keep = end_of_input.join().map_err(|_| io::Error::other("the reader of the standard input panicked"))?;
    if keep { Ok(()) } else { remove(&directory) }
}

/// Whether the directory is to be kept.
fn let_go_at_end_of_input(running: &Mutex<Option<Pid>>) -> bool {
    let mut words = String::new();
    let keep = io::stdin().read_to_string(&mut words).is_ok() && words.trim_end() == "keep";
    if let Some(pid) = *running.lock().unwrap_or_else(PoisonError::into_inner) {
        // An error says that the process is gone already, which is what is wanted.
        kill(pid, Signal::SIGKILL).ok();
    }
    keep
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Says when the process is stopped or goes on, and returns what to say of its end.
fn wait(pid: Pid) -> io::Result<String> {
    loop {
        let changed = waitpid(pid, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED));
        if let Ok(WaitStatus::Exited(_, code)) = changed {
            return Ok(format!("exited {code}"));
        } else if let Ok(WaitStatus::Signaled(_, signal, _)) = changed {
            return Ok(format!("killed {}", signal as i32));
        } else if let Ok(WaitStatus::Stopped(..)) = changed {
            say("stopped");
        } else if let Ok(WaitStatus::Continued(_)) = changed {
            say("continued");
        } else if let Err(error) = changed
            && error != Errno::EINTR
        {
            return Err(error.into());
        }
    }
}

fn say(line: &str) {
    // Nobody may be listening any more; the guard then has its real work still to do.
    writeln!(io::stdout(), "{line}").ok();
}
