//! What processes and servers have used, and the machine that they used it on.

use std::{collections::BTreeMap, fs, io, path::Path, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};
use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

/// Commands by which a client reads or writes documents. The rest, as `hello` and `ping`, keeps a connection alive.
const COMMANDS: [&str; 9] =
    ["aggregate", "bulkWrite", "count", "delete", "find", "findAndModify", "getMore", "insert", "update"];

/// What a process and its children have used since their start, as Linux tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, in and outside of the kernel.
    pub cpu: Duration,
    /// Bytes of memory that are resident now.
    pub resident: u64,
    /// The most bytes that were.
    pub peak: u64,
}

impl Usage {
    /// What the process of this id has used.
    ///
    /// # Errors
    ///
    /// The process is gone, or the system has no `/proc`.
    pub fn of(pid: u32) -> io::Result<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        let stat = fs::read_to_string(process.join("stat"))?;
        let status = fs::read_to_string(process.join("status"))?;
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc says of {pid}: {stat}"));
        let mut usage = Self {
            cpu: cpu(&stat, ticks_per_second()?).ok_or_else(malformed)?,
            resident: kibibytes(&status, "VmRSS").ok_or_else(malformed)? << 10,
            peak: kibibytes(&status, "VmHWM").ok_or_else(malformed)? << 10,
        };
        for child in children(&process) {
            // One that ends meanwhile no longer counts.
            if let Ok(other) = Self::of(child) {
                usage = usage.and(other);
            }
        }
        Ok(usage)
    }

    /// What both have used.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, resident: self.resident + other.resident, peak: self.peak + other.peak }
    }
}

fn ticks_per_second() -> io::Result<u64> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100);
    u64::try_from(ticks).map_err(io::Error::other)
}

/// The times of `/proc/<pid>/stat`, fields 14 and 15 of proc_pid_stat(5); the second field, the name, can hold spaces and
/// brackets.
fn cpu(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / ticks_per_second))
}

fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn children(process: &Path) -> Vec<u32> {
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// How often a mongod has carried out each of its commands since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commands(BTreeMap<&'static str, u64>);

impl Commands {
    /// What the server says.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub async fn of(database: &Database) -> mongodb::error::Result<Self> {
        let status = database.run_command(doc! { "serverStatus": 1 }).await?;
        let commands = status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"));
        let total = |commands: &Document, name| {
            let total = commands.get_document(name).ok()?.get("total").and_then(Bson::as_i64)?;
            u64::try_from(total).ok()
        };
        let commands =
            commands.map(|all| COMMANDS.iter().filter_map(|name| Some((*name, total(all, name)?))).collect());
        Ok(Self(commands.unwrap_or_default()))
    }

    /// Those since `before` that there were any of, by name, for each of `sessions`.
    #[must_use]
    pub fn per_session_since(&self, before: &Self, sessions: usize) -> BTreeMap<String, f64> {
        let since = |name| self.0.get(name).copied().unwrap_or(0) - before.0.get(name).copied().unwrap_or(0);
        let counted = self.0.keys().map(|name| (*name, since(name))).filter(|(_, count)| *count > 0);
        counted.map(|(name, count)| (name.to_owned(), count as f64 / sessions.max(1) as f64)).collect()
    }
}

/// What everything ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// CPUs that this process may use.
    pub cores: usize,
    /// What they are called.
    pub cpu: String,
    /// Its memory, in MiB.
    pub memory_mib: u64,
    /// The system.
    pub system: String,
}

impl Machine {
    /// This one.
    ///
    /// # Errors
    ///
    /// The system has no `/proc`.
    pub fn this() -> io::Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let memory = kibibytes(&fs::read_to_string("/proc/meminfo")?, "MemTotal").unwrap_or(0);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            cpu: name.map_or("an unnamed CPU", |(_, name)| name.trim()).to_owned(),
            memory_mib: memory >> 10,
            system: format!("{} {}", std::env::consts::OS, release.trim()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_passed_over() {
        let stat = "17 (a) b (c)) S 1 17 17 0 -1 4194304 100 0 0 0 250 50 7 8 20 0 4 0 100 1 2";
        assert_eq!(cpu(stat, 100), Some(Duration::from_secs(3)));
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = Usage::of(std::process::id()).expect("it runs");
        assert!(usage.peak >= usage.resident && usage.resident > 1 << 20, "{usage:?}");
        assert_eq!(kibibytes("VmHWM:\t    2048 kB\nVmRSS:\t   1024 kB\n", "VmRSS"), Some(1024));
    }

    #[test]
    fn commands_are_counted_by_session() {
        let before = Commands(BTreeMap::from([("find", 10), ("update", 5), ("insert", 7)]));
        let after = Commands(BTreeMap::from([("find", 14), ("update", 6), ("insert", 7)]));
        let expected = BTreeMap::from([("find".to_owned(), 0.4), ("update".to_owned(), 0.1)]);
        assert_eq!(after.per_session_since(&before, 10), expected);
    }
}
