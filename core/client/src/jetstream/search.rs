//! The search for a stored message that no client can be given.
//!
//! async-nats drops the connection over a header block that it cannot parse, without a word about it, and everything that
//! was sent behind it is lost. To the server the message is delivered; it comes again after the ack wait, first, and does the
//! same again. So after a connection that was lost while messages were asked for, and made anew at once, nothing is pulled
//! until the messages that may be under way have been read in a form that breaks nothing: those between the ack floor of the
//! consumer and the last one that it handed to anybody. What was read once is not read again.

use super::raw::{Flaw, RawMessage, ReadError};

/// Parts of the range that are read side by side.
const PARTS: u64 = 16;
/// How often a part may fail to be read before the search is given up: something else is wrong then.
const FAILURES: u32 = 5;

/// The search of one process.
#[derive(Debug, Default)]
pub(super) struct Search {
    state: SearchState,
    /// All ends up to here can be delivered.
    read_up_to: u64,
}

#[derive(Debug, Default)]
enum SearchState {
    #[default]
    Idle,
    /// Where to look has to be learnt from the consumer.
    Wanted {
        failures: u32,
    },
    Reading {
        parts: Vec<SearchPart>,
        delivered: u64,
        failures: u32,
    },
}

/// A part of the range: `next` is the first place that has not been read.
#[derive(Debug, Clone, Copy)]
struct SearchPart {
    next: u64,
    last: u64,
}

/// What the answer to a read has shown.
#[derive(Debug)]
pub(super) enum Found {
    /// The part goes on.
    More,
    /// A message that cannot be delivered; the part goes on.
    Undeliverable(RawMessage),
    /// The part has come to its end.
    End,
    /// The stream cannot be read: the part is tried again.
    Again,
    /// It cannot be read at all.
    GivenUp,
}

impl Search {
    /// Whether pulls are held.
    pub(super) fn is_on(&self) -> bool {
        !matches!(self.state, SearchState::Idle)
    }

    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.state, SearchState::Wanted { .. })
    }

    pub(super) fn want(&mut self) {
        self.state = SearchState::Wanted { failures: 0 };
    }

    pub(super) fn stop(&mut self) {
        self.state = SearchState::Idle;
    }

    /// Nobody says where to look; whether it is to be asked again.
    pub(super) fn goes_on_without_consumer(&mut self) -> bool {
        let SearchState::Wanted { failures } = &mut self.state else { return false };
        *failures += 1;
        let goes_on = *failures < FAILURES;
        if !goes_on {
            self.state = SearchState::Idle;
        }
        goes_on
    }

    /// Begins to read, and gives the number of parts.
    pub(super) fn begin(&mut self, ack_floor: u64, delivered: u64) -> usize {
        let first = ack_floor.max(self.read_up_to) + 1;
        let size = delivered.saturating_sub(first.saturating_sub(1)).div_ceil(PARTS).max(1);
        let starts = (0..PARTS).map(|part| first + part * size).take_while(|start| *start <= delivered);
        let parts: Vec<SearchPart> =
            starts.map(|next| SearchPart { next, last: delivered.min(next + size - 1) }).collect();
        let count = parts.len();
        self.state = SearchState::Reading { parts, delivered, failures: 0 };
        if count == 0 {
            self.end();
        }
        count
    }

    /// Where a part goes on; `None` where it has come to its end.
    pub(super) fn next(&self, part: usize) -> Option<u64> {
        let SearchState::Reading { parts, .. } = &self.state else { return None };
        parts.get(part).filter(|part| part.next <= part.last).map(|part| part.next)
    }

    /// Takes the answer to a read of a part.
    pub(super) fn answered(&mut self, part: usize, answer: Result<RawMessage, ReadError>) -> Found {
        let SearchState::Reading { parts, failures, .. } = &mut self.state else { return Found::End };
        let Some(part) = parts.get_mut(part) else { return Found::End };
        let found = match answer {
            Ok(message) if message.sequence <= part.last => {
                part.next = message.sequence + 1;
                if message.flaw().is_some_and(Flaw::ends_connection) {
                    Found::Undeliverable(message)
                } else if part.next > part.last {
                    Found::End
                } else {
                    Found::More
                }
            }
            Ok(_) | Err(ReadError::NotFound) => {
                part.next = part.last + 1;
                Found::End
            }
            Err(ReadError::Refused(_) | ReadError::Unreadable) => {
                *failures += 1;
                if *failures < FAILURES { Found::Again } else { Found::GivenUp }
            }
        };
        if matches!(found, Found::GivenUp) {
            self.state = SearchState::Idle;
        } else if parts.iter().all(|part| part.next > part.last) {
            self.end();
        }
        found
    }

    fn end(&mut self) {
        if let SearchState::Reading { delivered, .. } = self.state {
            self.read_up_to = self.read_up_to.max(delivered);
        }
        self.state = SearchState::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, block: &[u8]) -> RawMessage {
        RawMessage {
            subject: String::new(),
            sequence,
            stored_at: transcript_core::WallTime::from_millis(0),
            header_block: block.to_vec(),
            payload: vec![],
        }
    }

    /// Reads a stream that holds these, and gives what cannot be delivered and the number of reads.
    fn search(search: &mut Search, floor: u64, delivered: u64, stored: &[(u64, &[u8])]) -> (Vec<u64>, usize) {
        search.want();
        let parts = search.begin(floor, delivered);
        let (mut found, mut reads) = (vec![], 0);
        for part in 0..parts {
            while let Some(next) = search.next(part) {
                reads += 1;
                let answer = stored.iter().find(|(sequence, _)| *sequence >= next);
                let answer = answer.map(|(sequence, block)| message(*sequence, block)).ok_or(ReadError::NotFound);
                if let Found::Undeliverable(message) = search.answered(part, answer) {
                    found.push(message.sequence);
                }
            }
        }
        assert!(!search.is_on());
        (found, reads)
    }

    #[test]
    fn every_message_that_may_be_under_way_is_read_once() {
        let bad: &[u8] = b"NATS/1.0\r\nX:\xff\r\n\r\n";
        let stored: Vec<(u64, &[u8])> =
            (1..=100).map(|n| (3 * n, if n % 10 == 0 { bad } else { b"".as_slice() })).collect();
        let mut searching = Search::default();
        let (found, reads) = search(&mut searching, 20, 150, &stored);
        assert_eq!(found, [30, 60, 90, 120, 150]);
        assert!(reads <= 44 + 16, "{reads}");
        let (found, _) = search(&mut searching, 20, 200, &stored);
        assert_eq!(found, [180], "what was read once is not read again");
        assert_eq!(search(&mut searching, 200, 200, &stored), (vec![], 0));
        assert_eq!(search(&mut searching, 0, 0, &stored), (vec![], 0));
    }

    #[test]
    fn a_stream_that_cannot_be_read_ends_the_search() {
        let mut search = Search::default();
        search.want();
        assert_eq!(search.begin(0, 1), 1);
        for _ in 1..FAILURES {
            assert!(matches!(search.answered(0, Err(ReadError::Unreadable)), Found::Again));
        }
        assert!(matches!(search.answered(0, Err(ReadError::Unreadable)), Found::GivenUp));
        assert!(!search.is_on());
    }
}
