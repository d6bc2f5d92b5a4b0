//! Compares a configuration, as the server's JSON, with the settings that are needed, and says what to submit.

use std::time::Duration;

use serde_json::{Map, Value};

/// A stream's or a consumer's configuration as JetStream's API writes it.
pub(super) type Config = Map<String, Value>;

/// One setting that an object must have.
pub(super) struct Rule {
    /// As the server's API calls it.
    pub field: &'static str,
    pub wanted: Wanted,
    pub otherwise: Otherwise,
}

pub(super) enum Wanted {
    /// This value.
    Value(Value),
    /// This time, which the API counts in nanoseconds.
    Time(Duration),
    /// Nothing: absent, null, false, zero, empty, "none" or "default", between which the API does not distinguish.
    Nothing,
    /// Nothing, where a time or a list of times could be.
    NoTime,
    /// A list of subjects that matches at least these.
    Subjects(Vec<&'static str>),
}

/// What is done when the setting is another.
pub(super) enum Otherwise {
    /// It is changed.
    Change,
    /// It is refused, for the reason given.
    Refuse(&'static str),
    /// It is refused, for the reason given second, where it is what is given first; any other value is changed.
    RefuseIf(&'static str, &'static str),
    /// It stays, because nobody asked for a change, unless it is smaller than `least` or another setting, `unless`, has made
    /// it what it is; then it is changed.
    Keep {
        /// The option that asks for a change.
        option: &'static str,
        /// The smallest number that can stay.
        least: i64,
        /// A setting that overrules this one while it is set.
        unless: Option<&'static str>,
    },
}

/// A setting that is not what it must be, with both values written for people.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub field: &'static str,
    pub existing: String,
    pub wanted: String,
}

/// What to submit so that every rule is met.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub config: Config,
    pub differences: Vec<Difference>,
    /// What stays although the default is another, with the options that would change it.
    pub kept: Vec<(Difference, &'static str)>,
}

/// A setting that cannot be changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub difference: Difference,
    pub why: &'static str,
}

/// What has to be changed in `existing` so that it meets the `rules`; nothing else is changed.
pub(super) fn plan(existing: &Config, rules: &[Rule]) -> Result<Plan, Refusal> {
    let mut config = existing.clone();
    let mut differences = Vec::new();
    let mut kept = Vec::new();
    for rule in rules {
        let value = existing.get(rule.field).unwrap_or(&Value::Null);
        let wanted = rule.wanted.given(value);
        if same(value, &wanted) {
            continue;
        }
        let difference =
            Difference { field: rule.field, existing: rule.wanted.show(value), wanted: rule.wanted.show(&wanted) };
        match rule.otherwise {
            Otherwise::Refuse(why) => return Err(Refusal { difference, why }),
            Otherwise::RefuseIf(bad, why) if value == bad => return Err(Refusal { difference, why }),
            Otherwise::Keep { option, least, unless } if can_stay(existing, value, least, unless) => {
                kept.push((difference, option));
                continue;
            }
            Otherwise::RefuseIf(..) | Otherwise::Change | Otherwise::Keep { .. } => {}
        }
        if wanted.is_null() {
            config.remove(rule.field);
        } else {
            config.insert(rule.field.to_owned(), wanted);
        }
        differences.push(difference);
    }
    Ok(Plan { config, differences, kept })
}

fn can_stay(existing: &Config, value: &Value, least: i64, unless: Option<&str>) -> bool {
    let overruled = unless.and_then(|other| existing.get(other)).is_some_and(|other| !is_nothing(other));
    // Numbers above an i64's are times of centuries.
    let is_enough = value.as_i64().map_or(value.is_u64(), |value| value >= least && value != 0);
    is_enough && !overruled
}

/// The configuration of an object that does not exist yet.
pub(super) fn blank(rules: &[Rule]) -> Config {
    let given = rules.iter().map(|rule| (rule.field.to_owned(), rule.wanted.given(&Value::Null)));
    given.filter(|(_, value)| !value.is_null()).collect()
}

/// A number of nanoseconds as people write it.
pub(super) fn show_time(nanos: u64) -> String {
    humantime::format_duration(Duration::from_nanos(nanos)).to_string()
}

/// A time as the API counts it. The longest time that can be set here is far below the bound.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Wanted {
    /// The value to have where `existing` is what is there.
    fn given(&self, existing: &Value) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Time(time) => nanos(*time).into(),
            Self::Nothing | Self::NoTime => Value::Null,
            Self::Subjects(needed) => {
                let existing = existing.as_array().map_or(&[][..], Vec::as_slice);
                union(existing.iter().filter_map(Value::as_str), needed).into()
            }
        }
    }

    fn show(&self, value: &Value) -> String {
        match (self, value) {
            (Self::Time(_) | Self::NoTime, Value::Number(n)) => n.as_u64().map_or_else(|| n.to_string(), show_time),
            (Self::NoTime, Value::Array(times)) if !times.is_empty() => {
                times.iter().map(|time| self.show(time)).collect::<Vec<_>>().join(", ")
            }
            (_, Value::String(text)) => text.clone(),
            (_, value) if is_nothing(value) => "none".to_owned(),
            (_, value) => value.to_string(),
        }
    }
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || (is_nothing(a) && is_nothing(b))
}

pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(text) => matches!(text.as_str(), "" | "none" | "default"),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The existing subjects and the needed ones, without those that others of them match anyway: subjects of one stream
/// must not overlap (nats-server 2.15.1 refuses `x.>` beside `x.a`).
fn union<'a>(existing: impl Iterator<Item = &'a str>, needed: &[&'a str]) -> Vec<&'a str> {
    let mut subjects: Vec<&str> = existing.collect();
    for subject in needed {
        if !subjects.iter().any(|present| covers(present, subject)) {
            subjects.retain(|present| !covers(subject, present));
            subjects.push(subject);
        }
    }
    subjects
}

/// Whether every subject that `narrow` matches is matched by `wide`.
fn covers(wide: &str, narrow: &str) -> bool {
    let mut narrow = narrow.split('.');
    for token in wide.split('.') {
        match (token, narrow.next()) {
            (">", Some(_)) => return true,
            (_, None | Some(">")) => return false,
            ("*", Some(_)) => {}
            (token, Some(other)) if token != other => return false,
            (_, Some(_)) => {}
        }
    }
    narrow.next().is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(value: &Value) -> Config {
        value.as_object().expect("a configuration is an object").clone()
    }

    fn rules() -> Vec<Rule> {
        vec![
            Rule {
                field: "storage",
                wanted: Wanted::Value(json!("file")),
                otherwise: Otherwise::Refuse("it is fixed"),
            },
            Rule { field: "window", wanted: Wanted::Time(Duration::from_secs(86_400)), otherwise: Otherwise::Change },
            Rule { field: "backoff", wanted: Wanted::NoTime, otherwise: Otherwise::Change },
            Rule {
                field: "retention",
                wanted: Wanted::Value(json!("limits")),
                otherwise: Otherwise::RefuseIf("workqueue", "it is fixed too"),
            },
        ]
    }

    #[test]
    fn only_what_differs_is_changed_and_everything_else_is_kept() {
        let existing = config(&json!({
            "storage": "file", "window": 120_000_000_000_u64, "backoff": [1_000_000, 2_000_000_000], "retention": "interest",
            "max_age": 7, "unheard_of": {"a": 1},
        }));
        let plan = plan(&existing, &rules()).unwrap();
        assert_eq!(
            Value::Object(plan.config),
            json!({
                "storage": "file", "window": 86_400_000_000_000_u64, "retention": "limits",
                "max_age": 7, "unheard_of": {"a": 1},
            })
        );
        let shown: Vec<_> = plan.differences.iter().map(|d| (d.field, &*d.existing, &*d.wanted)).collect();
        assert_eq!(
            shown,
            [("window", "2m", "1day"), ("backoff", "1ms, 2s", "none"), ("retention", "interest", "limits")]
        );
    }

    #[test]
    fn what_is_as_it_must_be_is_left_alone() {
        let existing = blank(&rules());
        assert_eq!(plan(&existing, &rules()).unwrap(), Plan { config: existing, differences: vec![], kept: vec![] });
        for nothing in [json!(null), json!([]), json!(0), json!(false), json!(""), json!({})] {
            let mut existing = blank(&rules());
            existing.insert("backoff".to_owned(), nothing);
            assert_eq!(plan(&existing, &rules()).unwrap().differences, []);
        }
    }

    #[test]
    fn what_nobody_asked_for_stays_where_it_can() {
        let keep = |unless| {
            let otherwise = Otherwise::Keep { option: "--wait", least: 1, unless };
            vec![Rule { field: "wait", wanted: Wanted::Time(Duration::from_secs(6)), otherwise }]
        };
        let of = |value: Value| config(&json!({ "wait": value, "backoff": [1] }));
        let plan_of = |value: Value, unless| plan(&of(value), &keep(unless)).unwrap();
        let minute = plan_of(json!(60_000_000_000_u64), None);
        assert_eq!(minute.config, of(json!(60_000_000_000_u64)));
        let kept: Vec<_> = minute.kept.iter().map(|(d, option)| (&*d.existing, &*d.wanted, *option)).collect();
        assert_eq!((kept, minute.differences), (vec![("1m", "6s", "--wait")], vec![]));
        for (value, unless) in [(json!(1), Some("backoff")), (json!(0), None), (json!(-1), None), (json!(null), None)] {
            let plan = plan_of(value, unless);
            assert_eq!((plan.kept.len(), plan.differences.len()), (0, 1));
            assert_eq!(plan.config["wait"], json!(6_000_000_000_u64));
        }
        assert_eq!(plan_of(json!(6_000_000_000_u64), Some("backoff")).differences, []);
    }

    #[test]
    fn what_cannot_be_changed_is_refused_with_both_values() {
        let mut existing = blank(&rules());
        existing.insert("storage".to_owned(), json!("memory"));
        let refusal = plan(&existing, &rules()).unwrap_err();
        assert_eq!(
            refusal.difference,
            Difference { field: "storage", existing: "memory".into(), wanted: "file".into() }
        );
        assert_eq!(refusal.why, "it is fixed");

        let mut existing = blank(&rules());
        existing.insert("retention".to_owned(), json!("workqueue"));
        assert_eq!(plan(&existing, &rules()).unwrap_err().why, "it is fixed too");
    }

    #[test]
    fn subjects_are_joined_without_overlap() {
        let needed = ["transcription.>", "transcript.>"];
        let cases: [(&[&str], &[&str]); 6] = [
            (&[], &["transcription.>", "transcript.>"]),
            (&["transcript.>", "transcription.>"], &["transcript.>", "transcription.>"]),
            (&["billing.*"], &["billing.*", "transcription.>", "transcript.>"]),
            (&["transcription.session-ended", "transcription.*"], &["transcription.>", "transcript.>"]),
            (&[">"], &[">"]),
            (&["transcription.*.x", "transcript.>"], &["transcript.>", "transcription.>"]),
        ];
        for (existing, expected) in cases {
            assert_eq!(union(existing.iter().copied(), &needed), expected, "{existing:?}");
        }
    }

    #[test]
    fn covering_follows_the_rules_of_nats() {
        for (wide, narrow) in [(">", "a"), ("a.>", "a.b.c"), ("a.>", "a.>"), ("a.>", "a.*"), ("*.b", "a.b"), ("*", "*")]
        {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [("a.>", "a"), ("a.*", "a.>"), ("a", "*"), ("a.b", "a"), ("a", "a.b"), ("*.b", "a.*")] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }
}
