//! Starts, kills, freezes and restarts one processor, and remembers when.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    process_guard::Exit,
    processor::{Processor, ProcessorCommand, ProcessorError},
    wait::{NotReached, wait_until},
};

/// One processor, over all its lives.
#[derive(Debug)]
pub struct RestartedProcessor {
    command: ProcessorCommand,
    processor: Option<Processor>,
    /// What the lives before this one wrote to their logs.
    past: String,
    steps: Vec<(Instant, Step)>,
}

/// What was done to the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It was started.
    Started,
    /// It was stopped where it stood (`SIGSTOP`).
    Frozen,
    /// It went on (`SIGCONT`).
    Thawed,
    /// It was killed, or asked to end, and was gone.
    Ended(Exit),
}

impl RestartedProcessor {
    /// Runs of `command`, none of which is started yet.
    #[must_use]
    pub fn new(command: ProcessorCommand) -> Self {
        Self { command, processor: None, past: String::new(), steps: Vec::new() }
    }

    /// Starts it, and kills it first if it runs. Returns the moment before the start.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub async fn start(&mut self) -> Result<Instant, ProcessorError> {
        self.kill().await?;
        let at = Instant::now();
        self.processor = Some(self.command.start().await?);
        self.steps.push((at, Step::Started));
        Ok(at)
    }

    /// Waits until it has connected and set up, and takes messages.
    ///
    /// # Errors
    ///
    /// It is not ready `within` that time, or does not run.
    pub async fn ready(&self, within: Duration) -> Result<(), NotReached> {
        wait_until("the processor is ready", within, || async {
            let running = self.processor.as_ref().filter(|processor| processor.exit().is_none());
            match running.map(Processor::logs) {
                Some(log) if log.contains(" ready ") => Ok(()),
                _ => Err(self.logs()),
            }
        })
        .await
    }

    /// Kills it (`SIGKILL`) if it runs, and returns when it was gone.
    ///
    /// # Errors
    ///
    /// Nobody knows whether it is gone.
    pub async fn kill(&mut self) -> Result<Instant, ProcessorError> {
        if let Some(processor) = self.processor.take() {
            let exit = processor.kill().await?;
            self.past.push_str(&processor.logs());
            self.steps.push((Instant::now(), Step::Ended(exit)));
        }
        Ok(Instant::now())
    }

    /// Asks it to end (`SIGTERM`), waits until it is gone, and says how it ended; `None` where it does not run.
    ///
    /// # Errors
    ///
    /// It did not end `within` that time.
    pub async fn terminate(&mut self, within: Duration) -> Result<Option<Exit>, ProcessorError> {
        let Some(processor) = &self.processor else { return Ok(None) };
        processor.ask_to_end()?;
        let exit = processor.wait(within).await?;
        self.past.push_str(&processor.logs());
        self.processor = None;
        self.steps.push((Instant::now(), Step::Ended(exit)));
        Ok(Some(exit))
    }

    /// Stops it where it stands (`SIGSTOP`); its connections stay open.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn freeze(&mut self) -> Result<(), ProcessorError> {
        if let Some(processor) = &self.processor {
            processor.freeze().await?;
            self.steps.push((Instant::now(), Step::Frozen));
        }
        Ok(())
    }

    /// Lets it go on after [`Self::freeze`].
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn thaw(&mut self) -> Result<(), ProcessorError> {
        if let Some(processor) = &self.processor {
            processor.thaw().await?;
            self.steps.push((Instant::now(), Step::Thawed));
        }
        Ok(())
    }

    /// The process, while it runs.
    #[must_use]
    pub fn processor(&self) -> Option<&Processor> {
        self.processor.as_ref()
    }

    /// What all its lives have written to their logs so far.
    #[must_use]
    pub fn logs(&self) -> String {
        let present = self.processor.as_ref().map(Processor::logs).unwrap_or_default();
        format!("{}{present}", self.past)
    }

    /// What was done so far, and when.
    #[must_use]
    pub fn steps(&self) -> &[(Instant, Step)] {
        &self.steps
    }
}
