//! How often requests arrive, as a user says it.

use std::fmt;
use std::str::FromStr;

/// How often requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLoad {
    /// Share of the rate at which the reference can serve them, above 0 and below 1.
    pub share: f64,
    /// The reference policy; `None` takes the first of each stack, as for a VM that has no run under
    /// it.
    pub reference: Option<String>,
}

impl Default for RequestLoad {
    /// As busy as servers are that leave room for bursts.
    fn default() -> Self {
        Self { share: 0.7, reference: None }
    }
}

impl fmt::Display for RequestLoad {
    /// As [`FromStr`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.share)?;
        self.reference.as_ref().map_or(Ok(()), |reference| write!(f, "@{reference}"))
    }
}

impl FromStr for RequestLoad {
    type Err = String;

    /// Reads `0.7` or `0.7@thp`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (share, reference) = match text.split_once('@') {
            Some((share, reference)) => (share, Some(reference.trim().to_owned())),
            None => (text, None),
        };
        if reference.as_deref() == Some("") {
            return Err("name a policy behind @, or leave it out".to_owned());
        }
        let share = share.trim().parse().ok().filter(|share| *share > 0.0 && *share < 1.0);
        let share = share.ok_or("give a share above 0 and below 1, such as 0.7 or 0.7@base")?;
        Ok(Self { share, reference })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["0.7", "0.25@thp"] {
            assert_eq!(text.parse::<RequestLoad>().unwrap().to_string(), text);
        }
        assert_eq!("0.7".parse(), Ok(RequestLoad::default()));
        for wrong in ["", "0", "1", "-0.5", "nan", "x", "70%", "@thp", "0.5@"] {
            let message = wrong.parse::<RequestLoad>().unwrap_err();
            assert!(message.starts_with("give a share") || wrong == "0.5@", "{wrong}: {message}");
        }
    }
}
