//! The server's error codes: their names, and what each means to a job.
//!
//! Names and numbers are those of `src/mongo/base/error_codes.yml` in the server's repository (8.x), where not said
//! otherwise. The table holds what commands of this processor can meet. The server's own text is never passed on: it can
//! quote the whole command, and with it words of a call.

use std::fmt::Write as _;

use transcript_core::FailureKind;

/// What a code means to the command that met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The server, or its storage, serves nobody now, or gave up on this command: it passes.
    Busy,
    /// A limit of time was over: the write may have happened, and may still be lost.
    TimedOut,
    /// The user may not do this.
    Denied,
    /// The collection, or the server, is not what it must be: an operator must change it. No document is at fault.
    Unusable,
    /// A unique index holds the key already.
    Duplicate,
    /// A document, or what was made of it, is refused and will be refused again.
    Refused,
    /// Nothing is known of the code. A document may be at fault, and it may pass.
    Unknown,
}

/// An upsert met another document of the same key.
pub const DUPLICATE_KEY: i32 = 11_000;
/// No member of the replica set takes writes here.
pub const NOT_WRITABLE_PRIMARY: i32 = 10_107;
/// The validator of the collection refuses the document.
pub const DOCUMENT_VALIDATION_FAILURE: i32 = 121;
/// The storage engine gave up on a conflict.
pub const WRITE_CONFLICT: i32 = 112;
/// The user may not do this.
pub const UNAUTHORIZED: i32 = 13;
/// The majority did not confirm the write in time.
pub const WRITE_CONCERN_TIMEOUT: i32 = 64;
/// A document, or an update, is larger than 16 MiB.
pub const BSON_OBJECT_TOO_LARGE: i32 = 10_334;
/// The server is about to give up its place as primary.
pub const INTERRUPTED_DUE_TO_REPL_STATE_CHANGE: i32 = 11_602;

/// Code, name, meaning, and what to say beside the name.
const TABLE: &[(i32, &str, Class, &str)] = &[
    (2, "BadValue", Class::Refused, ""),
    (6, "HostUnreachable", Class::Busy, ""),
    (7, "HostNotFound", Class::Busy, ""),
    (9, "FailedToParse", Class::Refused, ""),
    (11, "UserNotFound", Class::Denied, ""),
    (UNAUTHORIZED, "Unauthorized", Class::Denied, "the user may not do this"),
    (14, "TypeMismatch", Class::Refused, ""),
    (15, "Overflow", Class::Refused, ""),
    (18, "AuthenticationFailed", Class::Denied, ""),
    (20, "IllegalOperation", Class::Unusable, ""),
    (22, "InvalidBSON", Class::Refused, ""),
    (24, "LockTimeout", Class::Busy, ""),
    (26, "NamespaceNotFound", Class::Unusable, ""),
    (43, "CursorNotFound", Class::Busy, ""),
    (46, "LockBusy", Class::Busy, ""),
    (50, "MaxTimeMSExpired", Class::TimedOut, ""),
    (52, "DollarPrefixedFieldName", Class::Refused, ""),
    (53, "InvalidIdField", Class::Refused, ""),
    (56, "EmptyFieldName", Class::Refused, ""),
    (57, "DottedFieldName", Class::Refused, ""),
    (59, "CommandNotFound", Class::Unusable, ""),
    (61, "ShardKeyNotFound", Class::Refused, "the collection is sharded by a field that summaries do not have"),
    (63, "StaleShardVersion", Class::Busy, ""),
    // Up to 7.x its name is WriteConcernFailed.
    (WRITE_CONCERN_TIMEOUT, "WriteConcernTimeout", Class::TimedOut, "a majority did not confirm the write in time"),
    (66, "ImmutableField", Class::Refused, ""),
    (72, "InvalidOptions", Class::Unusable, "is the collection a time series?"),
    (73, "InvalidNamespace", Class::Unusable, ""),
    (79, "UnknownReplWriteConcern", Class::Unusable, ""),
    (89, "NetworkTimeout", Class::TimedOut, ""),
    (91, "ShutdownInProgress", Class::Busy, ""),
    (100, "UnsatisfiableWriteConcern", Class::Busy, "too few members of the replica set are up"),
    (WRITE_CONFLICT, "WriteConflict", Class::Busy, ""),
    (115, "CommandNotSupported", Class::Unusable, ""),
    (116, "DocTooLargeForCapped", Class::Refused, "the collection is capped"),
    (DOCUMENT_VALIDATION_FAILURE, "DocumentValidationFailure", Class::Refused, "the collection's validator refuses it"),
    (123, "NotAReplicaSet", Class::Unusable, ""),
    (133, "FailedToSatisfyReadPreference", Class::Busy, ""),
    (134, "ReadConcernMajorityNotAvailableYet", Class::Busy, ""),
    (148, "ReadConcernMajorityNotEnabled", Class::Unusable, ""),
    (150, "StaleEpoch", Class::Busy, ""),
    (166, "CommandNotSupportedOnView", Class::Unusable, "there is a view in place of the collection"),
    (167, "OptionNotSupportedOnView", Class::Unusable, "there is a view in place of the collection"),
    (171, "CannotIndexParallelArrays", Class::Refused, ""),
    (175, "QueryPlanKilled", Class::Busy, ""),
    (189, "PrimarySteppedDown", Class::Busy, ""),
    (201, "CannotBuildIndexKeys", Class::Refused, ""),
    (202, "NetworkInterfaceExceededTimeLimit", Class::TimedOut, ""),
    (215, "DatabaseDropPending", Class::Busy, ""),
    (216, "ElectionInProgress", Class::Busy, ""),
    (237, "CursorKilled", Class::Busy, ""),
    (239, "SnapshotTooOld", Class::Busy, ""),
    (241, "ConversionFailure", Class::Refused, ""),
    (246, "SnapshotUnavailable", Class::Busy, ""),
    (249, "StaleDbVersion", Class::Busy, ""),
    (262, "ExceededTimeLimit", Class::TimedOut, ""),
    (264, "TooManyFilesOpen", Class::Busy, ""),
    (290, "TransactionExceededLifetimeLimitSeconds", Class::TimedOut, ""),
    (323, "APIStrictError", Class::Unusable, ""),
    (355, "InterruptedDueToStorageChange", Class::Busy, ""),
    (357, "InvalidBSONType", Class::Refused, ""),
    (365, "TemporarilyUnavailable", Class::Busy, ""),
    (371, "UserWritesBlocked", Class::Unusable, "an operator has blocked writes"),
    (378, "NonConformantBSON", Class::Refused, ""),
    (391, "ReauthenticationRequired", Class::Denied, ""),
    (402, "ResourceExhausted", Class::Busy, ""),
    (407, "PooledConnectionAcquisitionExceededTimeLimit", Class::TimedOut, ""),
    (433, "AdmissionQueueOverflow", Class::Busy, ""),
    (449, "RateLimitExceeded", Class::Busy, ""),
    (8_000, "AtlasError", Class::Unknown, ""),
    (10_003, "CannotGrowDocumentInCappedNamespace", Class::Refused, "the collection is capped"),
    (10_058, "LegacyNotPrimary", Class::Busy, ""),
    (NOT_WRITABLE_PRIMARY, "NotWritablePrimary", Class::Busy, ""),
    (BSON_OBJECT_TOO_LARGE, "BSONObjectTooLarge", Class::Refused, ""),
    (DUPLICATE_KEY, "DuplicateKey", Class::Duplicate, ""),
    (11_600, "InterruptedAtShutdown", Class::Busy, ""),
    (11_601, "Interrupted", Class::Busy, ""),
    (INTERRUPTED_DUE_TO_REPL_STATE_CHANGE, "InterruptedDueToReplStateChange", Class::Busy, ""),
    (13_388, "StaleConfig", Class::Busy, ""),
    (13_435, "NotPrimaryNoSecondaryOk", Class::Busy, ""),
    (13_436, "NotPrimaryOrSecondary", Class::Busy, ""),
    (14_031, "OutOfDiskSpace", Class::Busy, ""),
    (17_280, "KeyTooLong", Class::Refused, ""),
    // Both are without a name: an update would make the document too large (`src/mongo/db/update/update_driver` and
    // `src/mongo/db/query/write_ops`).
    (17_419, "the updated document is too large", Class::Refused, ""),
    (17_420, "the updated document is too large", Class::Refused, ""),
];

/// What a code means.
#[must_use]
pub fn class(code: i32) -> Class {
    row(code).map_or(Class::Unknown, |(_, _, class, _)| *class)
}

/// The kind of failure that a code is, for a document that nobody else shares the command with.
#[must_use]
pub fn kind(class: Class) -> FailureKind {
    match class {
        Class::Busy | Class::Unusable | Class::Duplicate | Class::Unknown => FailureKind::Busy,
        Class::TimedOut => FailureKind::TimedOut,
        Class::Denied => FailureKind::Denied,
        Class::Refused => FailureKind::Rejected,
    }
}

/// The code in words: its name and its number, and what is known of it.
#[must_use]
pub fn describe(code: i32) -> String {
    let Some((_, name, _, about)) = row(code) else { return format!("code {code}") };
    let mut words = format!("{name} ({code})");
    if !about.is_empty() {
        write!(words, ": {about}").ok();
    }
    words
}

fn row(code: i32) -> Option<&'static (i32, &'static str, Class, &'static str)> {
    TABLE.binary_search_by_key(&code, |row| row.0).ok().and_then(|place| TABLE.get(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_its_codes() {
        assert!(TABLE.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn a_code_is_told_by_name_and_number_and_an_unknown_one_by_number() {
        assert_eq!(describe(112), "WriteConflict (112)");
        assert_eq!(describe(13), "Unauthorized (13): the user may not do this");
        assert_eq!(describe(4711), "code 4711");
        assert_eq!(class(4711), Class::Unknown);
    }
}
