//! `strftime` in UTC, for templates that print today's date.
//!
//! UTC and not local time: a prompt must not depend on where the server stands, and a prefix must not
//! become invalid with a change of zone. Dates follow the proleptic Gregorian calendar; the conversion from
//! days is the usual one by eras of 400 years (146,097 days) that start on 1 March.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
/// 9999-12-31T23:59:59, the last second that Python's datetime knows.
const SECONDS_MAX: u64 = 253_402_300_799;

/// Formats seconds since 1970 with the directives that date lines use.
pub(crate) fn format_utc(format: &str, now_s: u64) -> Result<String, String> {
    let now_s = now_s.min(SECONDS_MAX);
    let (days, second) = (now_s / 86_400, now_s % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        // glibc's "%-d": no leading zero.
        let (bare, directive) = match directive {
            Some('-') => (true, chars.next()),
            other => (false, other),
        };
        let two = |value: u64| if bare { value.to_string() } else { format!("{value:02}") };
        out.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let name = other.map(String::from).unwrap_or_default();
                return Err(format!("strftime_now: the directive %{name} is not supported"));
            }
        });
    }
    Ok(out)
}

/// Year, month 1..=12, day 1..=31 of a day counted from 1970-01-01.
pub fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let cases = [
            (0, "1970-01-01 00:00:00 Thu"),
            (951_782_400, "2000-02-29 00:00:00 Tue"),
            (1_790_942_096, "2026-10-02 11:54:56 Fri"),
            (4_107_542_399, "2100-02-28 23:59:59 Sun"),
        ];
        for (now_s, text) in cases {
            assert_eq!(format_utc("%Y-%m-%d %H:%M:%S %a", now_s).as_deref(), Ok(text));
        }
        assert_eq!(format_utc("%-d %B %y, %I%p", 86_400 * 3).as_deref(), Ok("4 January 70, 12AM"));
        assert!(format_utc("%Q", 0).is_err());
    }
}
