//! A time as RFC 3339 writes it, in UTC.

/// Seconds since 1970 as `2026-11-22T07:30:00Z`.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = text::date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_800_000_000, "2027-01-15T08:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
